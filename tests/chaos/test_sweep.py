"""Leftovers after real crashes: swept by the next attempt, and never anything that somebody needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdr_core.metadata import Phase, RecoveryState, Repository
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.runtime.phase_command import own_runner
from cdr_core.sweep import sweep, sweep_recovery
from tests.chaos.leftovers import Case
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.spill import spilled_bytes


@pytest.fixture
def case(fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    for name in ("shm", "disk"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("CDR_SPILL_DIRS", f"{tmp_path / 'shm'}:40KB,{tmp_path / 'disk'}:100MB")
    monkeypatch.setenv("CDR_SEGMENT_SIZE", "4KiB")
    monkeypatch.setenv("CDR_SPILL_FILE_SIZE", "16KiB")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path / 'out'}")
    repository, recovery_id, settings = inline.start(request)
    yield Case(repository, recovery_id, settings, tmp_path)
    repository.close()


def test_a_recovery_spills_into_both_tiers_and_within_their_capacity(case: Case) -> None:
    case.run_before(Phase.DRAIN)
    used = [spilled_bytes(tier) for tier in case.tiers]
    assert 20_000 < used[0] <= 40_000 < used[1]
    case.run_from(Phase.DRAIN)
    case.assert_published_once()


@pytest.mark.seed("000-14", "E12", "E13")
@pytest.mark.parametrize("step", ["spill.write", "spill.file-full", "spill.files-durable", "spill.sealed"])
def test_the_next_attempt_removes_what_a_killed_spill_left_and_nothing_else(case: Case, step: str) -> None:
    """Attempt 1 is killed in SPILL; its files go, those of attempt 2, of rows and of others stay."""
    case.run_before(Phase.SPILL)
    case.die(Phase.SPILL, step)
    dead = case.recovery.epoch
    foreign = [case.root / "shm" / "notes.txt", case.root / "disk" / "r-unknown" / "e1" / "spill-00000"]
    foreign.append(Path(case.recovery.workspace) / "mine" / "file")
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"mine")
    left = case.files(dead)
    assert any(path.name.startswith("spill-") for path in left)
    earlier = case.files() - left
    report = case.run(Phase.SPILL)
    assert {Path(leftover.path) for leftover in report.leftovers if leftover.epoch == dead} == left
    assert case.files(dead) == set()
    assert {path for path in earlier if path.name == "plan.json"} <= case.files()
    assert {path for path in earlier if path.suffix == ".arrow"} <= case.files()
    assert any(path.name.startswith("spill-") for path in case.files(dead + 1))
    assert all(path.read_bytes() == b"mine" for path in foreign)
    case.run_from(Phase.DRAIN)
    case.assert_published_once()


@pytest.mark.seed("E14")
@pytest.mark.parametrize("step", ["spill.after-record", "spill.before-done", "spill.after-done"])
def test_finished_units_of_a_dead_attempt_are_kept(case: Case, step: str) -> None:
    """Their rows name them, so the next attempt uses them and sweeps only what no row names."""
    case.run_before(Phase.SPILL)
    case.die(Phase.SPILL, step)
    dead = case.recovery.epoch
    named = {
        Path(file["path"]) for unit in case.repository.units(case.id, Phase.SPILL) for file in unit.result["files"]
    }
    assert named <= case.files(dead)
    case.run(Phase.SPILL)
    # A set's own files are the ones that hold bytes and the one that lists its runs.
    assert {path for path in case.files(dead) if path.name.startswith("spill-") or path.name == "runs"} == named
    sets = {path.parent for path in case.files(dead) if path.name == "manifest.json"}
    assert len(sets) == len(
        {unit.result["manifest"] for unit in case.repository.units(case.id, Phase.SPILL)}
        & {str(path) for path in case.files(dead)}
    )
    assert {Path(unit.manifest) for unit in case.repository.units(case.id, Phase.SPILL)} <= case.files()
    case.run_from(Phase.DRAIN)
    case.assert_published_once()


@pytest.mark.seed("000-11")
def test_after_the_end_only_plan_and_receipt_are_left(case: Case) -> None:
    """No spill file, no selection, no unit of a recovery that is done; its ledgers are part of the receipt."""
    case.run_from(Phase.READ)
    assert case.recovery.state is RecoveryState.DONE
    report = sweep(case.repository, case.settings)
    assert report.removed > 0
    assert sorted(path.name for path in case.files()) == ["ledger.parquet", "plan.json", "receipt.json"]
    assert [spilled_bytes(tier) for tier in case.tiers] == [0, 0]
    assert not list((case.root / "shm").glob("r-*"))
    case.assert_published_once()
    assert sweep(case.repository, case.settings).leftovers == ()


def test_a_dry_run_lists_the_same_and_removes_nothing(case: Case) -> None:
    case.run_before(Phase.SPILL)
    case.die(Phase.SPILL, "spill.sealed")
    case.repository.cancel(case.id, force=True)
    before = case.files()
    dry = sweep(case.repository, case.settings, dry_run=True)
    assert case.files() == before
    real = sweep(case.repository, case.settings)
    assert [leftover.path for leftover in dry.leftovers] == [leftover.path for leftover in real.leftovers]
    assert dry.bytes == real.removed > 0
    assert [path.name for path in case.files()] == ["plan.json"]


def test_a_manifest_that_cannot_be_read_stops_the_sweep_of_its_recovery(case: Case) -> None:
    case.run_before(Phase.DRAIN)
    for manifest in case.files():
        if manifest.name == "manifest.json":
            manifest.write_text("{")
    before = case.files()
    case.repository.begin_attempt(case.id, Phase.DRAIN, own_runner("drain"))
    report = sweep_recovery(case.repository, case.id, case.settings)
    assert case.files() == before
    assert report.leftovers == ()
    assert "cannot be read" in report.left[-1].why


def test_links_and_strange_directories_are_reported_and_not_touched(case: Case) -> None:
    case.run_before(Phase.SPILL)
    case.die(Phase.SPILL, "spill.sealed")
    elsewhere = case.root / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("mine")
    link = Path(case.recovery.workspace) / f"e{case.recovery.epoch}" / "link"
    link.symlink_to(elsewhere)
    (case.root / "disk" / "r-ffffffffff").symlink_to(elsewhere)
    (Path(case.settings.workspace) / "r-unknown" / "e1").mkdir(parents=True)
    case.repository.cancel(case.id, force=True)
    left = {left.path for left in sweep(case.repository, case.settings).left}
    assert {str(link), str(case.root / "disk" / "r-ffffffffff")} <= left
    assert str(Path(case.settings.workspace) / "r-unknown") in left
    assert (elsewhere / "file").read_text() == "mine"
    assert link.is_symlink()


def test_a_recovery_of_another_host_is_not_swept(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.run_before(Phase.SPILL)
    case.die(Phase.SPILL, "spill.sealed")
    before = case.files()
    monkeypatch.setattr("cdr_core.sweep.leftovers.host_id", lambda: "another")
    case.repository.cancel(case.id, force=True)
    report = sweep(case.repository, case.settings)
    assert case.files() == before
    assert "another host" in report.left[0].why


def prepared_files(case: Case) -> set[Path]:
    return set((case.root / "out" / "data" / case.id).glob("*.parquet"))


def written_late(case: Case) -> Path:
    """What a task of a dead attempt leaves in the target that nobody could stop before the recovery was over."""
    path = case.root / "out" / "data" / case.id / "e1-00000-late-0-0.parquet"
    path.write_bytes(b"rows")
    return path


@pytest.mark.seed("E27", "E52")
def test_unpublished_output_is_listed_until_the_recovery_is_over_and_then_removed(case: Case) -> None:
    """What a manifest of the target or a row names stays for ever."""
    case.run_before(Phase.DRAIN)
    case.die(Phase.DRAIN, "drain.before-result")
    orphans = prepared_files(case)
    assert orphans
    report = case.run(Phase.DRAIN)
    listed = {Path(leftover.path) for leftover in report.leftovers if not leftover.removable}
    assert listed == orphans <= prepared_files(case)
    case.run(Phase.COMMIT)
    published = prepared_files(case)
    assert published
    assert not published & orphans
    late = written_late(case)
    report = sweep(case.repository, case.settings)
    assert late in {Path(leftover.path) for leftover in report.leftovers if leftover.removed}
    assert prepared_files(case) == published
    case.assert_published_once()


def test_output_is_kept_when_a_manifest_of_the_target_cannot_be_read(case: Case) -> None:
    case.run_before(Phase.DRAIN)
    case.die(Phase.DRAIN, "drain.before-result")
    case.run_from(Phase.DRAIN)
    late = written_late(case)
    before = prepared_files(case)
    assert late in before
    (case.root / "out" / "_cdr" / "manifest-2.json").write_text("{")
    report = sweep(case.repository, case.settings)
    assert prepared_files(case) == before
    assert any("manifest of the target cannot be read" in left.why for left in report.left)


def test_output_of_a_cancelled_recovery_that_no_row_names_is_removed(case: Case) -> None:
    case.run_before(Phase.DRAIN)
    case.die(Phase.DRAIN, "drain.before-result")
    case.repository.cancel(case.id, force=True)
    other = case.root / "out" / "data" / case.id / "part-of-somebody.parquet"
    other.write_bytes(b"mine")
    sweep(case.repository, case.settings)
    assert prepared_files(case) == {other}


@pytest.mark.seed("E54")
def test_a_directory_that_cannot_be_listed_does_not_fail_the_attempt(case: Case) -> None:
    """Cleaning up never changes the result of a run."""
    case.run_before(Phase.SPILL)
    case.die(Phase.SPILL, "spill.sealed")
    real, refused = Path.iterdir, []

    def iterdir(path: Path) -> Iterator[Path]:
        if path == Path(case.recovery.workspace):
            refused.append(path)
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Path, "iterdir", iterdir)
        report = case.run(Phase.SPILL)
    assert len(refused) > 1, "both the test and the driver have swept"
    assert "cannot be looked at: Permission denied" in report.left[0].why
    case.run_from(Phase.DRAIN)
    case.assert_published_once()


@pytest.mark.seed("000-14")
def test_a_sweep_that_never_stops_takes_nothing_from_a_recovery_that_dies_and_goes_on(case: Case) -> None:
    """Sweeps beside every step of every phase, with an attempt killed in each; the result is the same."""
    stop, rounds, child = case.root / "stop", case.root / "rounds", os.fork()
    if child == 0:
        count = 0
        with Repository.open(case.settings.database_url) as own:
            while not stop.exists():
                sweep(own, case.settings)
                count += 1
        rounds.write_text(str(count))
        os._exit(0)
    try:
        for phase in list(Phase):
            case.die(phase, f"{phase}.after-result")
            case.run(phase, swept=False)
    finally:
        stop.touch()
        os.waitpid(child, 0)
    assert int(rounds.read_text()) > 5
    case.assert_published_once()
