"""``cdr sweep``: lists what and why with sizes, removes it unless asked not to, and leaves the rest alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cdr_core.cli import main
from cdr_core.metadata import Phase
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints

Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cdr", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.run()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return run


@pytest.fixture
def cancelled(fixture_checkpoint: FixtureCheckpoints, tmp_path: Path) -> Path:
    """The workspace of a recovery that was cancelled after it had spilled."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path / 'out'}")
    repository, recovery, settings = inline.start(request)
    with repository:
        for phase in (Phase.READ, Phase.FILTER, Phase.SPILL):
            inline.run(repository, recovery, phase, settings)
        repository.cancel(recovery)
    return tmp_path / ".cdr" / "workspace" / recovery


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def test_a_dry_run_says_what_would_go_and_why_and_the_real_one_does_it(shell: Shell, cancelled: Path) -> None:
    before = files(cancelled)
    code, out, _ = shell("sweep", "--dry-run")
    assert code == 0
    assert files(cancelled) == before
    going = [line for line in out.splitlines() if line.startswith("would go")]
    assert len(going) == len(before) - 1
    assert all(f"({cancelled.name}: its recovery is over)" in line for line in going)
    code, out, _ = shell("sweep")
    assert code == 0
    assert out.splitlines()[-1].startswith(f"removed {len(going)} files, ")
    assert [path.name for path in files(cancelled)] == ["plan.json"]
    assert shell("sweep")[1] == "removed 0 files, 0 bytes\n"


def test_the_result_is_one_object(shell: Shell, cancelled: Path) -> None:
    strange = cancelled.parent / "r-unknown"
    strange.mkdir()
    code, out, _ = shell("sweep", "--json")
    result = json.loads(out)
    assert code == 0
    assert result["left"] == [{"path": str(strange), "why": "no recovery of this name is in the database"}]
    assert result["removed_bytes"] == result["bytes"] == sum(leftover["bytes"] for leftover in result["leftovers"]) > 0
    assert {leftover["recovery"] for leftover in result["leftovers"]} == {cancelled.name}
    assert not [leftover for leftover in result["leftovers"] if Path(leftover["path"]).exists()]
    assert strange.is_dir()


def test_without_any_recovery_nothing_is_touched(shell: Shell, tmp_path: Path) -> None:
    stranger = tmp_path / ".cdr" / "workspace" / "r-0123456789" / "e1" / "spill" / "spill-00000"
    stranger.parent.mkdir(parents=True)
    stranger.write_bytes(b"mine")
    code, out, _ = shell("sweep")
    assert code == 0
    assert "untouched" in out
    assert stranger.read_bytes() == b"mine"
