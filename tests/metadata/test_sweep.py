"""What rows protect from a sweep, on both databases: sets by their state and grants, checkpoints by their manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdr_core import settings as settings_module
from cdr_core.metadata import Attempt, Phase, RecoveryCheckpoint, Repository, SpillFile, SpillSet
from cdr_core.runtime.workspace import write_json
from cdr_core.settings import Settings
from cdr_core.storage.local import host_id
from cdr_core.sweep import Report, sweep_recovery
from tests.metadata.steps import PROOF, PROOF_SHA256, USER, begin, finish, new_recovery, reach

HAND_OVER = "hand-over"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    (tmp_path / "tier").mkdir()
    monkeypatch.setenv("CDR_SPILL_DIRS", f"{tmp_path / 'tier'}:1MB")
    return settings_module.load()


@pytest.fixture
def spilling(repository: Repository, tmp_path: Path) -> Attempt:
    new = new_recovery(host_id=host_id(), id="r-0123456789", workspace=str(tmp_path / "workspace" / "r-0123456789"))
    repository.create_recovery(new)
    for phase in (Phase.READ, Phase.FILTER):
        finish(repository, new.id, phase)
    return begin(repository, new.id, Phase.SPILL)


class Files:
    """Files of one recovery, made where an attempt makes them."""

    def __init__(self, root: Path, recovery_id: str) -> None:
        self.root, self.id = root, recovery_id

    def make(self, epoch: int, name: str, place: str = "workspace", content: str = "x") -> Path:
        path = self.root / place / self.id / f"e{epoch}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return path

    def seal(
        self, repository: Repository, attempt: Attempt, subtask: int, tier: str = "tier", home: str = "workspace"
    ) -> tuple[SpillSet, set[Path]]:
        """A sealed set: a file in the tier, positions and manifest in the workspace."""
        name = f"spill/set-{subtask}"
        file = self.make(attempt.epoch, f"{name}/spill-00000", tier)
        positions = self.make(attempt.epoch, f"{name}/positions", home)
        manifest = positions.parent / "manifest.json"
        write_json(str(manifest), {"files": [{"path": str(file), "bytes": 1}], "positions": str(positions)})
        with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
            row = transaction.seal_spill_set(subtask, str(manifest), None, [SpillFile(str(file), 1)], 1)
        return row, {file, positions, manifest}

    def all(self) -> set[Path]:
        return {path for path in self.root.glob(f"*/{self.id}/**/*") if path.is_file()}


@pytest.fixture
def files(tmp_path: Path, spilling: Attempt) -> Files:
    return Files(tmp_path, spilling.recovery_id)


def swept(repository: Repository, settings: Settings, attempt: Attempt) -> Report:
    return sweep_recovery(repository, attempt.recovery_id, settings)


@pytest.mark.seed("E12", "E53")
def test_sealed_sets_stay_released_ones_go_in_any_epoch(
    repository: Repository, settings: Settings, spilling: Attempt, files: Files
) -> None:
    """Also those of the running attempt, once the row says RELEASED and a crash kept the files."""
    kept, its = files.seal(repository, spilling, 0)
    gone, _ = files.seal(repository, spilling, 1)
    with repository.fenced(spilling.recovery_id, spilling.epoch) as transaction:
        assert transaction.release_grant(gone.id, HAND_OVER)
    running = files.make(spilling.epoch, "spill/units.json")
    assert swept(repository, settings, spilling).removed == 1 + 1 + len(Path(kept.manifest).read_bytes())
    assert files.all() == its | {running}


@pytest.mark.seed("E31")
def test_a_replaced_set_stays_while_a_checkpoint_holds_it(
    repository: Repository, settings: Settings, spilling: Attempt, files: Files
) -> None:
    """LOST = another set replaces it; a completed checkpoint that refers to its files still holds them."""
    old, its = files.seal(repository, spilling, 0)
    with repository.fenced(spilling.recovery_id, spilling.epoch) as transaction:
        transaction.acquire_grant(old.id, "checkpoint-1", durable=True)
    later = begin(repository, spilling.recovery_id, Phase.SPILL)
    _, new = files.seal(repository, later, 0)
    swept(repository, settings, later)
    assert files.all() == its | new
    with repository.fenced(later.recovery_id, later.epoch) as transaction:
        transaction.release_grant(old.id, "checkpoint-1")
    swept(repository, settings, later)
    assert files.all() == new


@pytest.mark.seed("E27", "E28")
def test_a_completed_checkpoint_protects_everything_that_its_manifest_names(
    repository: Repository, settings: Settings, spilling: Attempt, files: Files
) -> None:
    """A manifest without its row is no checkpoint; what a row names, and what that names, stays."""
    tail = files.make(spilling.epoch, "drain/tail")
    inner = files.make(spilling.epoch, "drain/set/manifest.json", content=f'{{"positions": "{tail}"}}')
    named = files.make(spilling.epoch, "checkpoints/000001.json", content=f'{{"cuts": {{"0": ["{inner}"]}}}}')
    orphan_tail = files.make(spilling.epoch, "drain/orphan")
    files.make(spilling.epoch, "checkpoints/000002.json", content=f'{{"cuts": ["{orphan_tail}"]}}')
    with repository.fenced(spilling.recovery_id, spilling.epoch) as transaction:
        transaction.begin_checkpoint(1)
        transaction.complete_checkpoint(1, str(named), "00")
        transaction.begin_checkpoint(2)
    later = begin(repository, spilling.recovery_id, Phase.SPILL)
    swept(repository, settings, later)
    assert files.all() == {tail, inner, named}
    with repository.fenced(later.recovery_id, later.epoch) as transaction:
        transaction.expire_checkpoint(1, "over")
    swept(repository, settings, later)
    assert files.all() == set()


@pytest.mark.seed("000-13")
def test_whoever_reads_a_set_of_a_finished_recovery_keeps_it_until_it_ends(
    repository: Repository, settings: Settings, spilling: Attempt, files: Files
) -> None:
    """The recovery is done, an export still reads. Durable grants serve a resumption, which there is none."""
    held, its = files.seal(repository, spilling, 0)
    files.seal(repository, spilling, 1)
    with repository.fenced(spilling.recovery_id, spilling.epoch) as transaction:
        transaction.acquire_grant(held.id, "checkpoint-1", durable=True)
        transaction.set_total(Phase.SPILL, 0, 0)
        transaction.finish_phase(Phase.SPILL, {})
    finish(repository, spilling.recovery_id, Phase.DRAIN)
    last = begin(repository, spilling.recovery_id, Phase.COMMIT)
    with repository.fenced(last.recovery_id, last.epoch) as transaction:
        transaction.acquire_grant(held.id, "export")
        transaction.intend(USER, 1, None, PROOF_SHA256, PROOF)
        transaction.published(USER, 1, "somewhere", None)
        transaction.commit_done(USER, 1)
        transaction.set_total(Phase.COMMIT, 0, 0)
        transaction.finish_phase(Phase.COMMIT, {})
    swept(repository, settings, last)
    assert files.all() == its
    with repository.fenced(last.recovery_id, last.epoch) as transaction:
        transaction.release_grant(held.id, "export")
    swept(repository, settings, last)
    assert files.all() == set()


def test_another_recoverys_files_are_its_own(
    repository: Repository, settings: Settings, spilling: Attempt, files: Files, tmp_path: Path
) -> None:
    other = reach(repository, Phase.SPILL, target="parquet:/other", host_id=host_id(), workspace=str(tmp_path / "w"))
    theirs = Files(tmp_path, other.recovery_id).make(1, "spill/set-0/spill-00000", "tier")
    mine = files.make(1, "read/units.json")
    swept(repository, settings, spilling)
    assert theirs.exists()
    assert not mine.exists()


@pytest.mark.parametrize("link_in", ["rows", "setting", "both"])
def test_a_tier_that_has_two_names_keeps_its_sealed_sets(
    repository: Repository,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spilling: Attempt,
    files: Files,
    link_in: str,
) -> None:
    """The rows know the tier by a link and the setting by its real path, or the reverse; leftovers still go."""
    (tmp_path / "tier").mkdir()
    (tmp_path / "link").symlink_to("tier")
    in_rows, in_setting = ("link" if link_in in (each, "both") else "tier" for each in ("rows", "setting"))
    monkeypatch.setenv("CDR_SPILL_DIRS", f"{tmp_path / in_setting}:1MB")
    _, kept = files.seal(repository, spilling, 0, in_rows)
    released, _ = files.seal(repository, spilling, 1, in_rows)
    orphan = files.make(spilling.epoch, "spill/set-9/spill-00000", "tier")
    with repository.fenced(spilling.recovery_id, spilling.epoch) as transaction:
        assert transaction.release_grant(released.id, HAND_OVER)
    later = begin(repository, spilling.recovery_id, Phase.SPILL)
    swept(repository, settings_module.load(), later)
    assert {path.resolve() for path in files.all()} == {path.resolve() for path in kept}
    assert not orphan.exists()


def test_a_workspace_below_a_link_is_swept_and_keeps_what_rows_name(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "link").symlink_to("workspace")
    new = new_recovery(host_id=host_id(), id="r-9876543210", workspace=str(tmp_path / "link" / "r-9876543210"))
    repository.create_recovery(new)
    for phase in (Phase.READ, Phase.FILTER):
        finish(repository, new.id, phase)
    attempt = begin(repository, new.id, Phase.SPILL)
    files = Files(tmp_path, new.id)
    _, kept = files.seal(repository, attempt, 0, "link", home="link")
    files.make(attempt.epoch, "spill/set-9/positions")
    later = begin(repository, new.id, Phase.SPILL)
    swept(repository, settings_module.load(), later)
    assert {path.resolve() for path in files.all()} == {path.resolve() for path in kept}


def test_a_name_that_moves_between_rows_while_they_are_read_is_seen(
    repository: Repository, settings: Settings, spilling: Attempt, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit's row named the file; while the sweep reads, that row changes, and a spill set's names it instead."""
    file = files.make(spilling.epoch, "spill/set-0/spill-00000", "tier")
    manifest = files.make(spilling.epoch, "spill/set-0/manifest.json", content="{}")
    named = {"files": [str(file), str(manifest)]}
    with repository.fenced(spilling.recovery_id, spilling.epoch) as transaction:
        transaction.record_unit(Phase.SPILL, "00000", "/unit.json", 1, 1, named)
    later = begin(repository, spilling.recovery_id, Phase.SPILL)
    checkpoints = repository.checkpoints
    moved: list[Any] = []

    def moving(recovery_id: str) -> tuple[RecoveryCheckpoint, ...]:
        """Read after the spill sets and before the units."""
        if not moved:
            with repository.fenced(later.recovery_id, later.epoch) as transaction:
                transaction.redo_unit(Phase.SPILL, "00000", "/unit.json", 1, 1, {})
                moved.append(transaction.seal_spill_set(0, str(manifest), None, [SpillFile(str(file), 1)], 1))
        return checkpoints(recovery_id)

    monkeypatch.setattr(repository, "checkpoints", moving)
    swept(repository, settings, later)
    assert moved
    assert files.all() == {file, manifest}
