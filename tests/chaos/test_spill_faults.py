"""What can go wrong while spilling: crashes, full disks, zombies. Each fault is shown to have fired."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdr_core import settings as settings_module
from cdr_core.errors import DiskFull
from cdr_core.metadata import Phase, PhaseState, Repository
from cdr_core.phases import spill
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.runtime.driver import PhaseRun
from cdr_core.runtime.phase_command import own_runner
from cdr_core.runtime.workspace import read_json
from cdr_core.settings import KIB, Settings
from cdr_core.spill.spill_set import SpillSet
from cdr_core.sweep import sweep_recovery
from tests.support import inline, output
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.spill import small_disk
from tests.support.spilled import spilled as pieces_of

RECORDS = 1878

Recovery = tuple[Repository, str, Settings]


@pytest.fixture
def request_for(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RecoveryRequest:
    monkeypatch.setenv("CDR_SEGMENT_SIZE", "4KiB")
    monkeypatch.setenv("CDR_SPILL_FILE_SIZE", "16KiB")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    return RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path / 'out'}")


@pytest.fixture
def recovery(request_for: RecoveryRequest) -> Iterator[Recovery]:
    """A recovery that is about to spill."""
    repository, recovery_id, settings = inline.start(request_for)
    for phase in (Phase.READ, Phase.FILTER):
        inline.run(repository, recovery_id, phase, settings)
    yield repository, recovery_id, settings
    repository.close()


def child(recovery_id: str, faults: str, log: Path) -> int:
    pid = os.fork()
    if pid == 0:
        os.environ |= {"CDR_FAULTS": faults, "CDR_FAULTS_LOG": str(log)}
        code = 70
        try:
            code = inline.main(["spill", recovery_id])
        finally:
            os._exit(code)
    return pid


def spill_files(recovery: Recovery, epoch: int | str = "*") -> list[Path]:
    repository, recovery_id, settings = recovery
    homes = [Path(repository.recovery(recovery_id).workspace)]
    homes += [Path(tier.path) / recovery_id for tier in settings.spill_dirs]
    return [path for home in homes for path in home.glob(f"e{epoch}/spill/set-*/*")]


def assert_published_once(target: Path) -> None:
    rows = output.rows(target)
    assert len(rows) == len({(row["gate"], row["up"], row["down"], row["pos"]) for row in rows}) == RECORDS


@pytest.mark.seed("002-26", "E12", "E13")
@pytest.mark.parametrize("step", ["spill.write", "spill.file-full", "spill.files-durable", "spill.sealed"])
def test_a_set_that_was_not_sealed_does_not_exist(recovery: Recovery, tmp_path: Path, step: str) -> None:
    """No row before the seal, no manifest before the files; the next attempt makes it again."""
    repository, recovery_id, settings = recovery
    pid = child(recovery_id, f"{step}=kill", tmp_path / "fired")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert (tmp_path / "fired").read_text() == f"{step} kill\n"
    assert repository.spill_sets(recovery_id) == ()
    assert repository.units(recovery_id, Phase.SPILL) == ()
    left = spill_files(recovery)
    assert left
    assert any(path.name == "manifest.json" for path in left) == (step == "spill.sealed")
    inline.run_all(repository, recovery_id, settings)
    assert not set(left) & set(spill_files(recovery))
    assert_published_once(tmp_path / "out")


@pytest.mark.seed("002-21", "002-42", "E15")
@pytest.mark.parametrize("step", ["spill.write", "spill.file-full", "spill.files-durable", "spill.sealed"])
def test_a_unit_that_fails_removes_what_it_wrote(recovery: Recovery, tmp_path: Path, step: str) -> None:
    """An error (not a crash) at any step leaves no file of the unit and nothing marked as done."""
    repository, recovery_id, settings = recovery
    pid = child(recovery_id, f"{step}=raise", tmp_path / "fired")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert (tmp_path / "fired").read_text() == f"{step} raise\n"
    assert spill_files(recovery) == []
    assert repository.units(recovery_id, Phase.SPILL) == ()
    inline.run_all(repository, recovery_id, settings)
    assert_published_once(tmp_path / "out")


@pytest.mark.seed("E15")
def test_a_full_disk_fails_the_attempt_cleanly_and_the_next_one_uses_another(
    request_for: RecoveryRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up after spill looked for room; its name is in the error, its files are gone, no unit is done."""
    small, other = tmp_path / "small", tmp_path / "other"
    other.mkdir()
    with small_disk(small, 1 << 20):
        monkeypatch.setenv("CDR_SPILL_DIRS", f"{small}:1MiB")
        repository, recovery_id, settings = inline.start(request_for)
        for phase in (Phase.READ, Phase.FILTER):
            inline.run(repository, recovery_id, phase, settings)
        look_for_room = spill._refuse_small_tiers

        def fill_behind(run: PhaseRun) -> None:
            look_for_room(run)
            (small / "foreign").write_bytes(b"x" * ((1 << 20) - 40 * KIB))

        with monkeypatch.context() as patch:
            patch.setattr(spill, "_refuse_small_tiers", fill_behind)
            with pytest.raises(DiskFull, match=f"spill directory {small}"):
                inline.run(repository, recovery_id, Phase.SPILL, settings)
        assert str(small) in (repository.recovery(recovery_id).error or "")
        assert spill_files((repository, recovery_id, settings)) == []
        assert repository.units(recovery_id, Phase.SPILL) == ()
        states = {row.name: row.state for row in repository.phases(recovery_id)}
        assert states[Phase.SPILL] is PhaseState.FAILED
        monkeypatch.setenv("CDR_SPILL_DIRS", f"{small}:1MiB,{other}")
        inline.run_all(repository, recovery_id, settings_module.load())
        assert_published_once(tmp_path / "out")
        assert (small / "foreign").exists()
        repository.close()


@pytest.mark.seed("E17")
def test_a_zombie_that_is_overtaken_while_it_writes_ends_fenced_and_leaves_nothing(
    request_for: RecoveryRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempt 1 sleeps in a file; attempt 2 sweeps it away and finishes; attempt 1 changes nothing."""
    (tmp_path / "tier").mkdir()
    monkeypatch.setenv("CDR_SPILL_DIRS", f"{tmp_path / 'tier'}:10MB")
    repository, recovery_id, settings = inline.start(request_for)
    recovery = repository, recovery_id, settings
    for phase in (Phase.READ, Phase.FILTER):
        inline.run(repository, recovery_id, phase, settings)
    hold = tmp_path / "hold"
    hold.touch()
    pid = child(recovery_id, f"spill.file-full=pause:{hold}", tmp_path / "fired")
    deadline = time.monotonic() + 60
    while not (tmp_path / "fired").exists():
        assert time.monotonic() < deadline, "the fault never fired"
        time.sleep(0.02)
    dead = repository.recovery(recovery_id).epoch
    assert spill_files(recovery, dead)
    inline.run(repository, recovery_id, Phase.SPILL, settings)
    assert spill_files(recovery, dead) == []
    finished = set(spill_files(recovery))
    hold.unlink()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 4
    assert set(spill_files(recovery)) == finished
    sweep_recovery(repository, recovery_id, settings)
    assert not list((tmp_path / "tier" / recovery_id).glob(f"e{dead}/**/*"))
    inline.run_all(repository, recovery_id, settings)
    assert_published_once(tmp_path / "out")
    repository.close()


@pytest.mark.seed("E18")
def test_two_tasks_at_one_unit_never_share_a_file_and_make_the_same_set(recovery: Recovery) -> None:
    """A task that Spark runs again (or twice) has names of its own, and the same bytes in them."""
    repository, recovery_id, settings = recovery
    attempt = repository.begin_attempt(recovery_id, Phase.SPILL, own_runner("spill"))
    assert attempt is not None
    drive = PhaseRun(repository, repository.recovery(recovery_id), Phase.SPILL, attempt.epoch, settings)
    unit = spill.prepare(drive)["00000"]
    details = [spill.execute(drive.job(), drive.plan, unit, f"00000-{twin}").result for twin in ("a", "b")]
    sets = [SpillSet.from_json(read_json(detail.manifest)) for detail in details]
    assert not {file.path for file in sets[0].files} & {file.path for file in sets[1].files}
    indices = [{name: column.tolist() for name, column in each.columns.items()} for each in sets]
    assert indices[0] == indices[1]
    pieces = [list(pieces_of(drive.plan, detail.manifest)) for detail in details]
    assert pieces[0] == pieces[1] != []


def published(target: Path) -> dict[tuple[int, ...], list[dict[str, object]]]:
    """The rows that were published, by virtual channel and new subtask, in order."""
    rows: dict[tuple[int, ...], list[dict[str, object]]] = {}
    for row in output.rows(target):
        rows.setdefault((row["up"], row["down"], row["new_down"]), []).append(row)
    return rows


def spilled(repository: Repository, recovery_id: str) -> list[bytes]:
    return [Path(file.path).read_bytes() for each in repository.spill_sets(recovery_id) for file in each.files]


@pytest.mark.seed("000-07", "000-19", "000-22")
@pytest.mark.parametrize("parallelism", ["same", "2"])
def test_where_data_is_spilled_shows_neither_in_the_sets_nor_in_the_output(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: str
) -> None:
    """With tiers and without, rescaled or not: the same bytes are spilled, the same rows published."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    for name in ("shm", "disk"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("CDR_SEGMENT_SIZE", "4KiB")
    monkeypatch.setenv("CDR_SPILL_FILE_SIZE", "16KiB")
    sets = []
    for target, dirs in (("plain", ""), ("tiers", f"{tmp_path}/shm:50KB,{tmp_path}/disk:10MB")):
        monkeypatch.setenv("CDR_SPILL_DIRS", dirs)
        request = RecoveryRequest(
            str(checkpoint.path), str(checkpoint.spec), parallelism, f"parquet:{tmp_path / target}"
        )
        repository, recovery_id, settings = inline.start(request)
        for phase in (Phase.READ, Phase.FILTER, Phase.SPILL):
            inline.run(repository, recovery_id, phase, settings)
        sets.append(spilled(repository, recovery_id))
        inline.run_all(repository, recovery_id, settings)
        repository.close()
    assert len(sets[0]) > 3
    assert sets[0] == sets[1]
    assert published(tmp_path / "plain") == published(tmp_path / "tiers") != {}
