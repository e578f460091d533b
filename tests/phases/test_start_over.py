"""Starting over: a new generation of the same checkpoint and target, while nothing is published."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from cdr_core import settings as settings_module
from cdr_core.cli import main as shell
from cdr_core.commit.sinks.parquet import ParquetSink
from cdr_core.errors import Fenced, Refused, Replaced, StartOver
from cdr_core.metadata import Phase, RecoveryState, Repository
from cdr_core.recovery import recovery_request as requests
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.sweep import sweep_recovery
from tests.support import inline, output
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.damage import Damaged


@pytest.fixture
def checkpoint(fixture_checkpoint: FixtureCheckpoints) -> FixtureCheckpoint:
    return fixture_checkpoint("a_p3_thr0", 2)


def _request(checkpoint: FixtureCheckpoint, to: Path, parallelism: str = "2", **options: Any) -> RecoveryRequest:
    return RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), parallelism, f"parquet:{to}", **options)


def _over(repository: Repository, request: RecoveryRequest) -> str:
    return requests.create_in(repository, request, settings_module.load())[0].id


def test_a_mistyped_parallelism_is_replaced(checkpoint: FixtureCheckpoint, tmp_path: Path) -> None:
    to = tmp_path / "out"
    repository, first, settings = inline.start(_request(checkpoint, to, "5"))
    inline.run(repository, first, Phase.READ, settings)
    with pytest.raises(StartOver, match=r"has parallelism 5, not 2; .* start over with --replace"):
        _over(repository, _request(checkpoint, to, "2"))
    second = _over(repository, _request(checkpoint, to, "2", replace="one"))
    assert second == f"{first}-g2"
    old, new = repository.recovery(first), repository.recovery(second)
    assert (old.state, old.replaced_by) == (RecoveryState.REPLACED, second)
    assert (new.generation, new.parallelism) == (2, "2")
    assert Path(new.workspace).name == second
    assert not list(Path(old.workspace).rglob("units.json")), "the files of the old generation are swept"
    assert inline.run_all(repository, second, settings)["verdict"] == "balanced"
    assert len(output.rows(to)) == len([*checkpoint.oracle.records])
    properties = json.loads((to / "_cdr" / "manifest-1.json").read_text())["properties"]
    assert properties["cdr.commit-user"] == f"cdr-{second}"
    assert properties["cdr.generation"] == "2"


def test_generations_count_on(checkpoint: FixtureCheckpoint, tmp_path: Path) -> None:
    to = tmp_path / "out"
    repository, first, _ = inline.start(_request(checkpoint, to, "5"))
    _over(repository, _request(checkpoint, to, "4", replace="one"))
    assert _over(repository, _request(checkpoint, to, "3", replace="two")) == f"{first}-g3"
    assert repository.recovery(f"{first}-g2").replaced_by == f"{first}-g3"


def test_the_same_start_over_again_finds_what_it_made(checkpoint: FixtureCheckpoint, tmp_path: Path) -> None:
    """A retried task asks again with the same token."""
    to = tmp_path / "out"
    repository, first, _ = inline.start(_request(checkpoint, to, "5"))
    again = [_over(repository, _request(checkpoint, to, "2", replace="run-1")) for _ in range(3)]
    assert again == [f"{first}-g2"] * 3


def test_a_retried_start_over_does_not_undo_a_later_one(checkpoint: FixtureCheckpoint, tmp_path: Path) -> None:
    """A task of the first run is retried after a second run has replaced what the first one made."""
    to = tmp_path / "out"
    repository, _, _ = inline.start(_request(checkpoint, to, "5"))
    second = _over(repository, _request(checkpoint, to, "4", replace="run-1"))
    third = _over(repository, _request(checkpoint, to, "3", replace="run-2"))
    with pytest.raises(Replaced, match=f"{second} was replaced by {third}; run: cdr resume {third}"):
        _over(repository, _request(checkpoint, to, "4", replace="run-1"))
    assert len(repository.recoveries()) == 3


def test_replace_without_an_older_recovery_just_creates(checkpoint: FixtureCheckpoint, tmp_path: Path) -> None:
    repository, first, _ = inline.start(_request(checkpoint, tmp_path / "out", replace="one"))
    assert repository.recovery(first).generation == 1


def test_a_cancelled_recovery_is_replaced(checkpoint: FixtureCheckpoint, tmp_path: Path) -> None:
    to = tmp_path / "out"
    repository, first, settings = inline.start(_request(checkpoint, to))
    repository.cancel(first)
    with pytest.raises(StartOver, match="was cancelled; start over with --replace"):
        _over(repository, _request(checkpoint, to))
    second = _over(repository, _request(checkpoint, to, replace="one"))
    assert inline.run_all(repository, second, settings)["verdict"] == "balanced"


def test_what_is_published_is_not_replaced(checkpoint: FixtureCheckpoint, tmp_path: Path) -> None:
    to = tmp_path / "out"
    repository, first, settings = inline.start(_request(checkpoint, to))
    inline.run_all(repository, first, settings)
    with pytest.raises(Refused, match=rf"{first} cannot be started over: it has published commit 1 at .*manifest-1"):
        _over(repository, _request(checkpoint, to, "3", replace="one"))
    assert repository.recovery(first).state is RecoveryState.DONE


def test_the_target_decides_what_is_published(
    checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Published, and the process died before it could say so: the rows know an intent only."""
    to = tmp_path / "out"
    repository, first, settings = inline.start(_request(checkpoint, to))
    inline.run_to(Phase.DRAIN, repository, first, settings)
    publish = ParquetSink.publish

    def publish_and_die(self: ParquetSink, *arguments: Any) -> Any:
        publish(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ParquetSink, "publish", publish_and_die)
        with pytest.raises(KeyboardInterrupt):
            inline.run(repository, first, Phase.COMMIT, settings)
    assert [str(entry.state) for entry in repository.commit_log(first)] == ["INTENT"]
    with pytest.raises(Refused, match="it has published commit 1"):
        _over(repository, _request(checkpoint, to, "3", replace="one"))
    assert repository.recovery(first).state is not RecoveryState.REPLACED


def test_a_process_of_the_old_generation_is_fenced(checkpoint: FixtureCheckpoint, tmp_path: Path) -> None:
    to = tmp_path / "out"
    repository, first, settings = inline.start(_request(checkpoint, to, "5"))
    inline.run(repository, first, Phase.READ, settings)
    epoch = repository.recovery(first).epoch
    second = _over(repository, _request(checkpoint, to, "2", replace="one"))
    with pytest.raises(Fenced), repository.fenced(first, epoch):
        pass
    with pytest.raises(Replaced, match=f"was replaced by {second}; run: cdr resume {second}"):
        inline.run(repository, first, Phase.FILTER, settings)
    with pytest.raises(Refused, match=f"was replaced by {second}; run: cdr cancel {second}"):
        repository.cancel(first)


def test_an_old_generation_that_wakes_and_publishes_is_not_published_twice(
    checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was paused behind its last question, and wakes when the next generation is about to publish."""
    to = tmp_path / "out"
    repository, first, settings = inline.start(_request(checkpoint, to))
    inline.run_to(Phase.DRAIN, repository, first, settings)
    publish = ParquetSink.publish
    second: list[Any] = []

    def paused(self: ParquetSink, base: str, publication: Any) -> Any:
        if not second:
            second.append(_over(repository, _request(checkpoint, to, "3", replace="one")))
            sweep_recovery(repository, first, settings)
        return publish(self, base, _without_permit(publication))

    with monkeypatch.context() as patched:
        patched.setattr(ParquetSink, "publish", paused)
        with pytest.raises(Fenced):
            inline.run(repository, first, Phase.COMMIT, settings)
    assert len(output.rows(to)) == len([*checkpoint.oracle.records]), "its files were not swept under it"
    with pytest.raises(Refused, match=f"recovery {first} has published this very checkpoint"):
        inline.run_all(repository, second[0], settings)
    assert len(output.rows(to)) == len([*checkpoint.oracle.records])
    with pytest.raises(Refused, match=f"recovery {first} has published this very checkpoint"):
        _over(repository, _request(checkpoint, to, "3"))


def _without_permit(publication: Any) -> Any:
    from dataclasses import replace

    return replace(publication, permit=lambda: None)


def test_prepared_output_of_a_replaced_generation_goes_when_a_later_one_is_done(
    checkpoint: FixtureCheckpoint, tmp_path: Path
) -> None:
    to = tmp_path / "out"
    repository, first, settings = inline.start(_request(checkpoint, to))
    inline.run_to(Phase.DRAIN, repository, first, settings)
    prepared = {path for path in to.rglob("*.parquet") if first in str(path)}
    assert prepared
    second = _over(repository, _request(checkpoint, to, "3", replace="one"))
    sweep_recovery(repository, first, settings)
    assert all(path.exists() for path in prepared)
    inline.run_all(repository, second, settings)
    sweep_recovery(repository, first, settings)
    assert not any(path.exists() for path in prepared)
    assert len(output.rows(to)) == len([*checkpoint.oracle.records])


def _shell(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["cdr", *words])
    with pytest.raises(SystemExit) as ended:
        shell.run()
    return int(ended.value.code or 0)


def _printed(text: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith("cdr: run: ")]
    words = shlex.split(line.removeprefix("cdr: run: "))
    assert words[0] == "cdr"
    return words[1:]


def test_the_command_printed_for_a_damaged_checkpoint_recovers_what_is_sound(
    checkpoint: FixtureCheckpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inline.in_shell(monkeypatch)
    damaged = Damaged(checkpoint, tmp_path / "chk-2")
    damaged.flip((1, 1), damaged.frames((1, 1))[20], 6)
    to = tmp_path / "a place"
    words = ("recover", str(damaged.folder), "--spec", str(checkpoint.spec), "--parallelism", "2")
    assert _shell(monkeypatch, *words, "--to", f"parquet:{to}") == 5
    command = _printed(capsys.readouterr().err)
    assert _shell(monkeypatch, *command) == 6
    assert 0 < len(output.rows(to)) < len([*checkpoint.oracle.records])


@pytest.mark.parametrize("before", ["cancel", "parallelism"])
def test_the_command_printed_for_another_option_works(
    before: str,
    checkpoint: FixtureCheckpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inline.in_shell(monkeypatch)
    to = tmp_path / "out"
    words = ["recover", str(checkpoint.path), "--spec", str(checkpoint.spec), "--to", f"parquet:{to}", "--parallelism"]
    assert _shell(monkeypatch, *words, "5" if before == "parallelism" else "2", "--create-only", "--json") == 0
    recovery = json.loads(capsys.readouterr().out)["recovery"]
    if before == "cancel":
        assert _shell(monkeypatch, "cancel", recovery) == 0
    assert _shell(monkeypatch, *words, "2") == 3
    command = _printed(capsys.readouterr().err)
    assert command[-1] == "--replace"
    assert _shell(monkeypatch, *command) == 0
    assert len(output.rows(to)) == len([*checkpoint.oracle.records])


def test_the_command_printed_for_an_unproven_key_works(
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inline.in_shell(monkeypatch)
    fixture, to = fixture_checkpoint("b_p3_thr0", 2), tmp_path / "out"
    words = ("recover", str(fixture.path), "--spec", str(fixture.spec), "--parallelism", "2", "--to", f"parquet:{to}")
    assert _shell(monkeypatch, *words) == 3
    command = _printed(capsys.readouterr().err)
    assert _shell(monkeypatch, *command) == 0
    assert "DONE, balanced (key: unproven): 9 records" in capsys.readouterr().out
    receipt = json.loads(next(Path(settings_module.load().workspace).rglob("receipt.json")).read_text())
    assert receipt["proven"] is False
    assert receipt["exchanges"][0]["key"]["proven"] is False
    assert _shell(monkeypatch, "verify", receipt["recovery"]["id"]) == 0
    assert capsys.readouterr().out.startswith("balanced (key: unproven): 9 records")
