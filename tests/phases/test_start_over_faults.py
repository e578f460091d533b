"""Starting over where the target's history is in doubt, and after a crash in the middle of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from cdr_core.commit.sinks.parquet import ParquetSink
from cdr_core.errors import InDoubt, Refused
from cdr_core.metadata import Phase, RecoveryState
from cdr_core.recovery.recovery_request import RecoveryRequest, create_in
from cdr_core.runtime.pin_file import pin_file_of
from cdr_core.sweep import sweep
from tests.support import inline, output
from tests.support.checkpoints import FixtureCheckpoints


@pytest.fixture
def request_five(fixture_checkpoint: FixtureCheckpoints, tmp_path: Path) -> RecoveryRequest:
    """A request with parallelism 5; the start-overs of these tests ask for 2."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    source = checkpoint.copy(tmp_path / "chk-2")
    return RecoveryRequest(str(source), str(checkpoint.spec), "5", f"parquet:{tmp_path / 'out'}")


def _refuse(*_: object) -> NoReturn:
    raise Refused("the target is away")


@pytest.mark.parametrize("forgotten", [True, False])
def test_a_target_that_forgot_its_history_refuses_a_start_over(
    request_five: RecoveryRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: bool
) -> None:
    """The old generation intended a commit on base 0. Without manifest 1, the target cannot tell what became of it."""
    repository, first, settings = inline.start(request_five)
    inline.run_to(Phase.DRAIN, repository, first, settings)
    with monkeypatch.context() as patched:
        patched.setattr(ParquetSink, "publish", _refuse)
        with pytest.raises(Refused, match="the target is away"):
            inline.run(repository, first, Phase.COMMIT, settings)
    assert [(str(entry.state), entry.base) for entry in repository.commit_log(first)] == [("INTENT", "0")]
    for number in (2, 3) if forgotten else (1, 2, 3):
        manifest = {"version": 1, "files": [], "properties": {}}
        path = tmp_path / "out" / "_cdr" / f"manifest-{number}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(manifest))
    over = replace(request_five, parallelism="2", replace="one")
    if forgotten:
        with pytest.raises(InDoubt, match=r"a publication on 0 was begun.*does not go back that far"):
            create_in(repository, over, settings)
        assert repository.recovery(first).state is not RecoveryState.REPLACED
        assert len(repository.recoveries()) == 1
    else:
        assert create_in(repository, over, settings)[0].id == f"{first}-g2"


def _files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("cleaner", ["sweep", "start", "retry"])
def test_a_crash_after_the_replacement_leaves_nothing(
    request_five: RecoveryRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cleaner: str
) -> None:
    """The process dies when the next generation has its row and the old generation still has its files."""
    monkeypatch.setenv("CDR_PIN_FILES", "true")
    repository, first, settings = inline.start(request_five)
    inline.run(repository, first, Phase.READ, settings)
    over = replace(request_five, parallelism="2", replace="one", trust_key=True)
    with monkeypatch.context() as patched:
        patched.setenv("CDR_FAULTS", "recovery.replaced=raise")
        with pytest.raises(OSError, match=r"fault injected at recovery\.replaced"):
            create_in(repository, over, settings)
    second, workspace = f"{first}-g2", Path(repository.recovery(first).workspace)
    old_pin, new_pin = (Path(pin_file_of(request_five.checkpoint, each)) for each in (first, second))
    assert repository.recovery(first).replaced_by == second
    assert len(_files(workspace)) > 1
    assert old_pin.is_file()
    if cleaner == "sweep":
        sweep(repository, settings)
    else:
        again = over if cleaner == "retry" else replace(over, replace="")
        assert create_in(repository, again, settings)[0].id == second
        assert new_pin.is_file()
        assert not old_pin.exists()
    assert _files(workspace) == {"plan.json"}, "a plan is kept for a while, as of every recovery that ended"
    assert inline.run_all(repository, second, settings)["verdict"] == "balanced"
    assert output.rows(tmp_path / "out")
