"""An export holds what it reads, and leaves a checkpoint or nothing: slow ones, failing ones, dead ones."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdr_core.checkpoint_target import export_lease as holding
from cdr_core.checkpoint_target.export import Exported, export_checkpoint
from cdr_core.errors import Refused
from cdr_core.flink.checkpoint import METADATA_FILE
from cdr_core.metadata import Export, Phase, Repository, SpillSetState
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.settings import Settings
from cdr_core.spill.reservations import LEDGER
from cdr_core.sweep import sweep_recovery
from tests.support import draining, inline
from tests.support.checkpoints import FixtureCheckpoints

RECORDS = 1878


class Case:
    """A recovery that has drained, with its sets in a memory tier; ``number`` is its last recovery checkpoint."""

    def __init__(self, repository: Repository, recovery: str, settings: Settings, root: Path) -> None:
        self.repository, self.id, self.settings, self.root = repository, recovery, settings, root
        self.to = root / "exported"

    def run(self, phase: Phase) -> None:
        inline.run(self.repository, self.id, phase, self.settings)

    @property
    def number(self) -> int:
        return self.repository.checkpoints(self.id)[-1].checkpoint_id

    def export(self, number: int | None = None) -> Exported:
        return export_checkpoint(self.repository, self.id, number or self.number, str(self.to))

    def spilled(self) -> list[Path]:
        return sorted((self.root / "shm" / self.id).glob("e*/*/set-*/*"))

    def left(self) -> list[str]:
        return sorted(path.name for path in self.to.iterdir()) if self.to.exists() else []

    def die(self, step: str) -> None:
        child = os.fork()
        if child == 0:
            os.environ |= {"CDR_FAULTS": f"{step}=kill", "CDR_FAULTS_LOG": str(self.root / "fired")}
            try:
                with Repository.open(self.settings.database_url) as own:
                    export_checkpoint(own, self.id, self.number, str(self.to))
            finally:
                os._exit(70)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert (self.root / "fired").read_text() == f"{step} kill\n"


@pytest.fixture
def spilled(fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("CDR_SPILL_DIRS", f"{tmp_path / 'shm'}:100MB")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path / 'out'}")
    case = Case(*draining.spilled(request), tmp_path)
    yield case
    case.repository.close()


@pytest.fixture
def case(spilled: Case) -> Case:
    spilled.run(Phase.DRAIN)
    return spilled


def let_pass(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """From now on it is so much later, as far as grants are concerned."""
    later = time.time() + seconds
    monkeypatch.setattr("cdr_core.metadata.grants.time.time", lambda: later)


class Slow:
    """An export in a thread that stops at a step until it may go on."""

    def __init__(self, case: Case, step: str, monkeypatch: pytest.MonkeyPatch, number: int | None = None) -> None:
        self._waits, self._log = case.root / "waits", case.root / "slow"
        self.result: Exported | None = None
        self.error: Exception | None = None
        self._waits.touch()
        monkeypatch.setenv("CDR_FAULTS", f"{step}=pause:{self._waits}")
        monkeypatch.setenv("CDR_FAULTS_LOG", str(self._log))
        self._thread = threading.Thread(target=self._run, args=(case, number))
        self._thread.start()
        while not self._log.exists():
            assert self._thread.is_alive(), self.error
            time.sleep(0.01)

    def _run(self, case: Case, number: int | None) -> None:
        try:
            self.result = case.export(number)
        except Exception as error:
            self.error = error

    def go_on(self) -> None:
        self._waits.unlink()
        self._thread.join()


@pytest.mark.seed("000-13", "E31")
def test_a_slow_export_across_the_end_of_the_drain_reads_what_it_began_with(
    spilled: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drain ends and its grants with it; the export still has its sets, and becomes whole."""
    monkeypatch.setattr("cdr_core.runtime.driver.HEARTBEAT_SECONDS", -1.0)
    spilled.repository.request(spilled.id, "checkpoint", {"aligned_timeout": None})
    killed = draining.drain_in_child(spilled.id, "checkpoint.completed=kill")
    assert draining.exit_status(killed) == -9
    export = Slow(spilled, "export.set", monkeypatch)
    held = [
        grant.live for each in spilled.repository.spill_sets(spilled.id) for grant in each.grants if "@" in grant.holder
    ]
    assert held == [True, True]
    spilled.run(Phase.DRAIN)
    export.go_on()
    assert export.result is not None, export.error
    assert export.result.records == RECORDS
    assert spilled.repository.exports(spilled.id) == ()
    spilled.run(Phase.COMMIT)
    assert spilled.spilled() == []


@pytest.mark.seed("000-11", "000-13", "002-24", "E31")
def test_a_commit_leaves_a_slow_export_its_sets_and_its_end_removes_them(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files outlive the recovery while an export reads them; an export that begins too late is refused."""
    export = Slow(case, "export.set", monkeypatch)
    files = case.spilled()
    case.run(Phase.COMMIT)
    assert case.spilled() == files, "the export still reads them"
    sweep_recovery(case.repository, case.id, case.settings)
    assert case.spilled() == files, "and a sweep knows"
    export.go_on()
    assert isinstance(export.error, Refused)
    assert "has begun to publish" in str(export.error)
    assert case.left() == []
    assert case.spilled() == []
    assert {each.state for each in case.repository.spill_sets(case.id)} == {SpillSetState.RELEASED}
    held = json.loads((case.root / "shm" / LEDGER).read_text())["held"]
    assert sum(size for _, _, size in held) == 0, "its room is free again"


@pytest.mark.seed("E54")
@pytest.mark.parametrize("step", ["export.set", "export.files", "export.states"])
def test_an_export_that_fails_leaves_nothing_and_the_next_one_is_whole(
    case: Case, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Also in a directory where other files lie, which stay."""
    case.to.mkdir()
    (case.to / "notes.txt").write_text("mine")
    monkeypatch.setenv("CDR_FAULTS", f"{step}=once:{case.root / 'failed'}:raise")
    with pytest.raises(OSError, match="fault injected"):
        case.export()
    assert case.left() == ["notes.txt"]
    assert not any(
        "@" in grant.holder for each in case.repository.spill_sets(case.id) for grant in each.grants if grant.live
    )
    assert case.export().records == RECORDS
    assert {METADATA_FILE, "notes.txt"} < set(case.left())


@pytest.mark.seed("E53")
@pytest.mark.parametrize("step", ["export.set", "export.files"])
def test_an_export_that_was_killed_is_swept_once_it_is_taken_for_dead_and_can_be_repeated(
    case: Case, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Killed without a `_metadata`; another export to the same directory does not wait for anything."""
    case.die(step)
    left = case.left()
    assert left
    assert METADATA_FILE not in left
    assert sweep_recovery(case.repository, case.id, case.settings).leftovers == (), "it may still live"
    assert case.left() == left
    assert case.export().records == RECORDS
    whole = set(case.left()) - set(left)
    let_pass(monkeypatch, 700)
    report = sweep_recovery(case.repository, case.id, case.settings)
    assert {Path(leftover.path).name for leftover in report.leftovers if leftover.removed} >= set(left)
    assert set(case.left()) == whole
    assert case.repository.exports(case.id) == ()


def test_an_export_that_was_killed_when_it_was_whole_stays(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "LEASE_SECONDS", 0.0)
    monkeypatch.setattr("cdr_core.metadata.exports.Exports.renew_export", lambda *_: True)
    case.die("export.metadata")
    whole = case.left()
    assert METADATA_FILE in whole
    sweep_recovery(case.repository, case.id, case.settings)
    assert case.left() == whole
    assert case.repository.exports(case.id) == ()
    with pytest.raises(Refused, match="holds a checkpoint already"):
        case.export()


@pytest.mark.seed("E32")
def test_a_dead_export_keeps_no_set_for_ever(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its grant counts for some minutes and no longer, with and without a sweep."""
    monkeypatch.setattr(holding, "LEASE_SECONDS", 0.05)
    case.die("export.files")
    time.sleep(0.1)
    case.run(Phase.COMMIT)
    assert case.spilled() == []


def test_an_export_that_was_taken_for_dead_writes_no_metadata(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that slept longer than its lease may find its files swept: it ends instead of naming them."""
    export = Slow(case, "export.states", monkeypatch)
    let_pass(monkeypatch, 700)
    sweep_recovery(case.repository, case.id, case.settings)
    export.go_on()
    assert "lost its lease" in str(export.error)
    assert case.left() == []


def test_an_export_that_slept_right_before_its_metadata_leaves_no_checkpoint_without_files(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was alive when it looked, then stopped for longer than its lease, and a sweep removed its files."""
    export = Slow(case, "export.last-step", monkeypatch)
    let_pass(monkeypatch, 700)
    sweep_recovery(case.repository, case.id, case.settings)
    assert case.left() == []
    export.go_on()
    assert "lost its lease" in str(export.error)
    assert case.left() == []


def test_a_file_that_is_gone_when_the_metadata_is_written_withdraws_it(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = Slow(case, "export.last-step", monkeypatch)
    (case.to / case.left()[0]).unlink()
    export.go_on()
    assert "was removed while it was being exported" in str(export.error)
    assert case.left() == []


def test_an_export_of_a_checkpoint_that_has_expired_meanwhile_holds_nothing(case: Case) -> None:
    """The state is looked at again under the lock of the recovery."""
    (row,) = case.repository.checkpoints(case.id)
    export = Export("late", row.checkpoint_id, str(case.to), None, ())
    with case.repository.fenced(case.id, case.repository.recovery(case.id).epoch) as transaction:
        transaction.expire_checkpoint(row.checkpoint_id, "a newer one")
    with pytest.raises(Refused, match="is EXPIRED"):
        case.repository.begin_export(case.id, export, 600)
    assert case.repository.exports(case.id) == ()


def test_a_lease_that_has_lapsed_is_not_renewed(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = case.repository.checkpoints(case.id)
    export = Export("slow", row.checkpoint_id, str(case.to), None, ())
    assert case.repository.begin_export(case.id, export, 600)
    assert case.repository.renew_export(case.id, "slow", 600)
    let_pass(monkeypatch, 700)
    assert not case.repository.renew_export(case.id, "slow", 600)
