"""Files of a spill set live while somebody holds a grant, and go exactly once, after the row says so."""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from cdr_core.errors import Fenced, Refused
from cdr_core.metadata import Attempt, Phase, Repository, SpillFile, SpillSet, SpillSetState
from cdr_core.runtime.workspace import write_json
from cdr_core.spill import set_cleanup as release_module
from cdr_core.spill.reservations import Reservations
from cdr_core.spill.set_cleanup import attempt_of, delete_released, release
from cdr_core.spill.tiers import Tier
from tests.metadata.steps import begin, reach
from tests.support.spill import places, write

HAND_OVER = "hand-over"
RECORDS = [(channel, [bytes([channel]) * 400] * 5) for channel in range(4)]


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    (tmp_path / "tier").mkdir()
    return Tier(str(tmp_path / "tier"), 100_000)


@pytest.fixture
def draining(repository: Repository, tmp_path: Path) -> Attempt:
    return reach(repository, Phase.SPILL, workspace=str(tmp_path / "workspace"))


def seal(repository: Repository, attempt: Attempt, tier: Tier, root: Path, subtask: int = 0) -> SpillSet:
    """A set with real files: segments in the tier, runs and manifest in the workspace.

    Its positions are named by the manifest alone, as in sets of format 2.
    """
    name = f"set-{subtask}-{attempt.epoch}"
    directory = root / attempt.recovery_id / f"e{attempt.epoch}" / "spill" / name
    made = write(directory, RECORDS, 512, 1024, places([tier], name, attempt.epoch, attempt.recovery_id))
    manifest = str(directory / "manifest.json")
    positions = directory / "positions"
    positions.write_bytes(bytes(8))
    write_json(manifest, {**made.to_json(), "positions": str(positions)})
    files = [SpillFile(file.path, file.bytes) for file in made.files]
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        return transaction.seal_spill_set(subtask, manifest, "host-1", files, sum(file.bytes for file in files))


def hold(repository: Repository, attempt: Attempt, held: SpillSet, holder: str, durable: bool = False) -> None:
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        transaction.acquire_grant(held.id, holder, durable=durable)


def on_disk(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("**/e*/**/*") if path.is_file())


@pytest.mark.seed("000-11", "000-13", "E31")
def test_files_survive_a_slow_holder_and_vanish_with_the_last_grant(
    repository: Repository, draining: Attempt, tier: Tier, tmp_path: Path
) -> None:
    """The drain ends, an upload still reads; when it ends, nothing of the set is left."""
    held = seal(repository, draining, tier, tmp_path)
    before = on_disk(tmp_path)
    assert len(before) == len(held.files) + 2 > 5
    hold(repository, draining, held, "drain")
    hold(repository, draining, held, "upload")
    assert not release(repository, *whose(draining), held.id, HAND_OVER)
    assert not release(repository, *whose(draining), held.id, "drain")
    assert on_disk(tmp_path) == before
    assert release(repository, *whose(draining), held.id, "upload")
    assert on_disk(tmp_path) == []
    assert list(tmp_path.glob("**/set-*")) == []
    assert Reservations(tier, "r-another", 1).take(100_000), "its room in the tier is free again"


@pytest.mark.seed("002-24", "E53")
def test_a_second_or_late_release_deletes_nothing_and_raises_nothing(
    repository: Repository, draining: Attempt, tier: Tier, tmp_path: Path
) -> None:
    """Double release, release of what was never held, files that are gone already."""
    held = seal(repository, draining, tier, tmp_path)
    other = seal(repository, draining, tier, tmp_path, subtask=1)
    Path(held.files[0].path).unlink()
    assert not release(repository, *whose(draining), held.id, "never held")
    assert release(repository, *whose(draining), held.id, HAND_OVER)
    assert not release(repository, *whose(draining), held.id, HAND_OVER)
    assert delete_released(repository, draining.recovery_id) == 0
    with pytest.raises(Refused, match="gives no more grants"):
        hold(repository, draining, held, "late")
    assert len(on_disk(tmp_path)) == len(other.files) + 2, "another set is not touched"


def test_a_foreign_file_beside_the_set_stays(
    repository: Repository, draining: Attempt, tier: Tier, tmp_path: Path
) -> None:
    held = seal(repository, draining, tier, tmp_path)
    foreign = Path(held.manifest).parent / "notes.txt"
    foreign.write_text("mine")
    assert release(repository, *whose(draining), held.id, HAND_OVER)
    assert on_disk(tmp_path) == [foreign]


def test_a_path_outside_of_the_attempt_is_never_deleted(
    repository: Repository, draining: Attempt, tier: Tier, tmp_path: Path
) -> None:
    """A row or a manifest that names somebody else's file does not make it ours."""
    foreign = tmp_path / "foreign"
    foreign.write_text("mine")
    sneaky = f"{tier.path}/{draining.recovery_id}/e{draining.epoch}/../../../foreign"
    files = [SpillFile(str(foreign), 4), SpillFile(sneaky, 4)]
    with repository.fenced(*whose(draining)) as transaction:
        held = transaction.seal_spill_set(0, str(tmp_path / "manifest.json"), None, files, 4)
    assert release(repository, *whose(draining), held.id, HAND_OVER)
    assert foreign.read_text() == "mine"


@pytest.mark.seed("E53")
def test_a_crash_between_row_and_files_is_finished_by_whoever_comes_next(
    repository: Repository, draining: Attempt, tier: Tier, tmp_path: Path, url: str
) -> None:
    """Killed after the row, and again in the middle of the files; the set is gone in the end, the rest is not."""
    held = seal(repository, draining, tier, tmp_path)
    fired = tmp_path / "fired"
    for fault in ("release.row=kill", "release.file=kill"):
        child = os.fork()
        if child == 0:
            os.environ |= {"CDR_FAULTS": fault, "CDR_FAULTS_LOG": str(fired)}
            with Repository.open(url) as own:
                release(own, *whose(draining), held.id, HAND_OVER)
                delete_released(own, draining.recovery_id)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert repository.spill_sets(draining.recovery_id)[0].state is SpillSetState.RELEASED
        assert Path(held.manifest).exists()
    assert fired.read_text() == "release.row kill\nrelease.file kill\n"
    assert delete_released(repository, draining.recovery_id) > 0
    assert on_disk(tmp_path) == []


def test_an_attempt_that_is_over_releases_nothing(
    repository: Repository, draining: Attempt, tier: Tier, tmp_path: Path
) -> None:
    held = seal(repository, draining, tier, tmp_path)
    begin(repository, draining.recovery_id, Phase.SPILL)
    with pytest.raises(Fenced):
        release(repository, *whose(draining), held.id, HAND_OVER)
    assert len(on_disk(tmp_path)) == len(held.files) + 2


@pytest.mark.seed("E32")
def test_grants_of_a_dead_attempt_keep_nothing_but_durable_ones_do(
    repository: Repository, draining: Attempt, tier: Tier, tmp_path: Path
) -> None:
    """Stale grants in the database are void with their epoch."""
    first, second = seal(repository, draining, tier, tmp_path), seal(repository, draining, tier, tmp_path, subtask=1)
    hold(repository, draining, first, "reader")
    hold(repository, draining, second, "checkpoint-1", durable=True)
    later = begin(repository, draining.recovery_id, Phase.SPILL)
    assert release(repository, *whose(later), first.id, HAND_OVER)
    assert not release(repository, *whose(later), second.id, HAND_OVER)
    assert len(on_disk(tmp_path)) == len(second.files) + 2
    assert release(repository, *whose(later), second.id, "checkpoint-1")
    assert on_disk(tmp_path) == []


@pytest.mark.seed("E54")
def test_a_file_that_cannot_be_deleted_is_left_to_the_sweep(
    repository: Repository, draining: Attempt, tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error while cleaning up is not an error of the recovery."""
    held = seal(repository, draining, tier, tmp_path)
    real, refused = Path.unlink, []

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.name == "spill-00001":
            refused.append(path)
            raise PermissionError(1, "not permitted")
        real(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    assert release(repository, *whose(draining), held.id, HAND_OVER)
    assert on_disk(tmp_path) == refused
    monkeypatch.setattr(Path, "unlink", real)
    assert delete_released(repository, draining.recovery_id) > 0
    assert on_disk(tmp_path) == []


def whose(attempt: Attempt) -> tuple[str, int]:
    return attempt.recovery_id, attempt.epoch


def release_all(url: str, recovery_id: str, epoch: int, set_id: int, holders: list[str]) -> tuple[int, int]:
    """How many of the releases were the last, and how many files this process deleted."""
    deleted = 0
    real = release_module.delete_file

    def counted(name: str, recovery_id: str) -> int:
        nonlocal deleted
        size = real(name, recovery_id)
        deleted += size > 0
        return size

    release_module.delete_file = counted
    with Repository.open(url) as own, ThreadPoolExecutor(len(holders)) as pool:
        last = list(pool.map(lambda holder: release(own, recovery_id, epoch, set_id, holder), holders))
    return sum(last), deleted


@pytest.mark.seed("000-13", "000-19")
def test_processes_and_threads_that_release_at_once_delete_every_file_once(
    repository: Repository, draining: Attempt, tier: Tier, tmp_path: Path, url: str
) -> None:
    """Of all releases one is the last, and each file is deleted by one of them."""
    held = seal(repository, draining, tier, tmp_path)
    holders = [HAND_OVER, *(f"reader-{number}" for number in range(8))]
    for holder in holders[1:]:
        hold(repository, draining, held, holder)
    files = len(on_disk(tmp_path))
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(3, mp_context=context) as pool:
        # Every holder is released by two processes.
        parts = [holders[:6], holders[3:], [*holders[6:], *holders[:3]]]
        work = [pool.submit(release_all, url, *whose(draining), held.id, part) for part in parts]
        answers = [each.result(120) for each in work]
    assert sum(last for last, _ in answers) == 1
    assert sum(deleted for _, deleted in answers) == files
    assert on_disk(tmp_path) == []


@pytest.mark.seed("000-11", "E19")
def test_a_lost_set_goes_with_whoever_held_it_last_and_the_hand_over_does_not_count(
    repository: Repository, draining: Attempt, tier: Tier, tmp_path: Path
) -> None:
    """Another set took its place; what is left of it must not keep a tier's room until a sweep comes."""
    old = seal(repository, draining, tier, tmp_path)
    its = set(on_disk(tmp_path))
    hold(repository, draining, old, "checkpoint-1", durable=True)
    later = begin(repository, draining.recovery_id, Phase.SPILL)
    new = seal(repository, later, tier, tmp_path)
    assert [each.state for each in repository.spill_sets(draining.recovery_id)] == [
        SpillSetState.LOST,
        SpillSetState.SEALED,
    ]
    assert delete_released(repository, draining.recovery_id) == 0, "a checkpoint still refers to it"
    assert release(repository, *whose(later), old.id, "checkpoint-1")
    assert its.isdisjoint(on_disk(tmp_path))
    assert len(on_disk(tmp_path)) == len(new.files) + 2, "the one that counts is not touched"


def test_files_of_a_lost_set_that_was_found_after_all_are_those_of_the_set_that_counts(
    repository: Repository, draining: Attempt, tier: Tier, tmp_path: Path
) -> None:
    """A transient error made a set look lost; whoever drained it again read the old one. Both rows name its files."""
    old = seal(repository, draining, tier, tmp_path)
    its = set(on_disk(tmp_path))
    later = begin(repository, draining.recovery_id, Phase.SPILL)
    seal(repository, later, tier, tmp_path)
    size = sum(file.bytes for file in old.files)
    with repository.fenced(later.recovery_id, later.epoch) as transaction:
        transaction.seal_spill_set(0, old.manifest, "host-1", old.files, size, again=True)
    lost, counts = repository.spill_sets(draining.recovery_id)
    assert (lost.state, counts.state) == (SpillSetState.LOST, SpillSetState.SEALED)
    assert lost.manifest == counts.manifest
    delete_released(repository, draining.recovery_id)
    assert its <= set(on_disk(tmp_path))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("/tier/r-1/e3/spill/file", ("/tier", 3)),
        ("s3://bucket/w/r-1/e3/file", ("s3://bucket/w", 3)),
        ("/tier/r-2/e3/spill/file", None),
        ("/tier/r-1/e3/../../../file", None),
        ("/tier/r-1/e3", None),
        ("tier/r-1/e3/file", None),
    ],
)
def test_a_path_is_an_attempts_only_below_its_epoch(name: str, found: tuple[str, int] | None) -> None:
    assert attempt_of(name, "r-1") == found
