"""Where spill files lie: the first tier with room, the next one when it fills up, and never other bytes for it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdr_core.errors import DiskFull, StorageError
from cdr_core.spill.reservations import Reservations, held_in
from cdr_core.spill.set_writer import RUNS, SetWriter
from cdr_core.spill.spill_set import SpillFile, SpillSet
from cdr_core.spill.tiered_files import Place, SetFiles
from cdr_core.spill.tiers import Tier
from tests.support.spill import RECOVERY, append, places, read, segments_of, small_disk, spilled_bytes, write

KIB = 1024


def records(count: int, size: int = 1000, seed: int = 7) -> list[tuple[int, list[bytes]]]:
    random = Random(seed)
    return [(number // 5, [random.randbytes(size)]) for number in range(count)]


def contents(spill_set: SpillSet) -> list[bytes]:
    return [Path(file.path).read_bytes() for file in spill_set.files]


def in_tiers(spill_set: SpillSet) -> tuple[SpillFile, ...]:
    """The files that lie in tiers: all but the last, which says the positions."""
    *found, last = spill_set.files
    assert Path(last.path).name == RUNS
    return tuple(found)


def index(spill_set: SpillSet) -> dict[str, list[int]]:
    return {name: column.tolist() for name, column in spill_set.columns.items()}


def test_the_first_tier_is_filled_then_the_next(tmp_path: Path) -> None:
    """A memory tier is a directory listed first: what fits lies there, the rest on disk, in order."""
    tiers = [Tier(str(tmp_path / name), capacity) for name, capacity in (("shm", 20 * KIB), ("disk", None))]
    for tier in tiers:
        Path(tier.path).mkdir()
    spill_set = write(tmp_path / "set", records(60), 4 * KIB, 8 * KIB, places(tiers))
    assert read(spill_set) == read(write(tmp_path / "plain", records(60), 4 * KIB, 8 * KIB))
    homes = [file.path.split("/")[-6] for file in in_tiers(spill_set)]
    assert homes == sorted(homes, reverse=True), "shm first, then disk"
    assert 10 * KIB < spilled_bytes(tiers[0]) <= 20 * KIB
    assert all(f"/{RECOVERY}/e1/spill/" in file.path for file in in_tiers(spill_set))


@settings(deadline=None, max_examples=50)
@given(
    capacities=st.lists(st.integers(0, 40_000), min_size=1, max_size=3),
    count=st.integers(1, 60),
    segment=st.integers(500, 4000),
    file=st.integers(500, 12_000),
)
def test_segments_and_cuts_never_depend_on_the_tiers(
    tmp_path_factory: pytest.TempPathFactory, capacities: list[int], count: int, segment: int, file: int
) -> None:
    """A set that is made again in other tiers has the same segments at the same places of the same files."""
    root = tmp_path_factory.mktemp("tiers")
    tiers = [Tier(str(root / f"t{n}"), capacity) for n, capacity in enumerate(capacities)]
    tiers.append(Tier(str(root / "last"), None))
    for tier in tiers:
        Path(tier.path).mkdir()
    spread = write(root / "spread", records(count), segment, file, places(tiers))
    plain = write(root / "plain", records(count), segment, file)
    assert index(spread) == index(plain)
    assert contents(spread) == contents(plain)
    assert [file.bytes for file in spread.files] == [file.bytes for file in plain.files]
    for tier, capacity in zip(tiers, capacities, strict=False):
        assert spilled_bytes(tier) <= capacity


def one_set(root: Path, number: int, tiers: Sequence[Tier]) -> SpillSet:
    return write(root / f"set-{number}", records(40, seed=number), 4 * KIB, 16 * KIB, places(tiers, f"set-{number}"))


def test_tasks_in_several_processes_share_a_tier_and_stay_below_its_capacity(tmp_path: Path) -> None:
    tiers = [Tier(str(tmp_path / "shm"), 70 * KIB), Tier(str(tmp_path / "disk"), None)]
    for tier in tiers:
        Path(tier.path).mkdir()
    with ProcessPoolExecutor(4, mp_context=get_context("forkserver")) as pool:
        sets = list(pool.map(one_set, [tmp_path] * 8, range(8), [tiers] * 8))
    assert 50 * KIB < spilled_bytes(tiers[0]) <= 70 * KIB
    for number, spill_set in enumerate(sets):
        assert read(spill_set) == read(write(tmp_path / f"plain-{number}", records(40, seed=number), 4 * KIB, 16 * KIB))


@pytest.mark.seed("E15")
def test_a_used_up_capacity_fails_the_unit_and_leaves_nothing(tmp_path: Path) -> None:
    """The sentence names the directories and the setting; files, directories and reservations are gone."""
    tiers = [Tier(str(tmp_path / name), 20 * KIB) for name in ("a", "b")]
    for tier in tiers:
        Path(tier.path).mkdir()
    with pytest.raises(DiskFull, match=f"{tmp_path}/a; .*{tmp_path}/b; .*CDR_SPILL_DIRS") as full:
        write(tmp_path / "set", records(60), 4 * KIB, 8 * KIB, places(tiers))
    assert full.value.retry_helps
    assert not (tmp_path / "set").exists()
    assert [spilled_bytes(tier) for tier in tiers] == [0, 0]
    write(tmp_path / "small", records(30), 4 * KIB, 8 * KIB, places(tiers, "small"))


@pytest.mark.seed("E15")
@pytest.mark.parametrize("spare", [False, True], ids=["alone", "with a spare"])
def test_a_disk_that_is_really_full(tmp_path: Path, spare: bool) -> None:
    """ENOSPC of a real file system: the next tier takes the whole file, or the unit fails and removes its own."""
    tiers = [Tier(str(tmp_path / "small"), None)]
    if spare:
        (tmp_path / "spare").mkdir()
        tiers.append(Tier(str(tmp_path / "spare"), None))
    with small_disk(tmp_path / "small", 64 * KIB):
        (tmp_path / "small" / "foreign").write_bytes(b"x" * 10 * KIB)
        if not spare:
            with pytest.raises(DiskFull, match=f"no room left in spill directory {tmp_path}/small"):
                write(tmp_path / "set", records(100), 4 * KIB, 16 * KIB, places(tiers))
            assert not (tmp_path / "set").exists()
            assert spilled_bytes(tiers[0]) == 0
        else:
            spill_set = write(tmp_path / "set", records(100), 4 * KIB, 16 * KIB, places(tiers))
            assert contents(spill_set) == contents(write(tmp_path / "plain", records(100), 4 * KIB, 16 * KIB))
            assert min(spilled_bytes(tier) for tier in tiers) > 16 * KIB
        assert (tmp_path / "small" / "foreign").stat().st_size == 10 * KIB


def failing(after: int, code: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The disk answers ``code`` from the given write on, after half of the bytes; how often it did."""
    real, calls = os.writev, [0, 0]

    def writev(descriptor: int, pieces: Sequence[memoryview]) -> int:
        calls[0] += 1
        if calls[0] == after:
            return real(descriptor, [pieces[-1][: len(pieces[-1]) // 2]])
        if calls[0] > after:
            calls[1] += 1
            raise OSError(code, os.strerror(code))
        return real(descriptor, pieces)

    monkeypatch.setattr(os, "writev", writev)
    return lambda: calls[1]


@pytest.mark.seed("E15")
@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (errno.ENOSPC, DiskFull, "no room left in spill directory"),
        (errno.EDQUOT, DiskFull, "no room left in spill directory"),
        (errno.EIO, StorageError, "cannot write to spill directory .*Input/output error"),
    ],
)
def test_a_disk_that_fails_in_the_middle_of_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[StorageError], says: str
) -> None:
    """A quota, a full disk and a broken one, after a write that was cut short."""
    (tmp_path / "disk").mkdir()
    fired = failing(3, code, monkeypatch)
    with pytest.raises(StorageError, match=says) as failed:
        write(tmp_path / "set", records(60), 4 * KIB, 16 * KIB, places([Tier(str(tmp_path / "disk"), 1 << 20)]))
    assert fired() == 1
    assert type(failed.value) is kind
    assert not (tmp_path / "set").exists()
    assert spilled_bytes(Tier(str(tmp_path / "disk"), None)) == 0


def test_a_write_cut_short_is_undone_before_the_file_moves_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiers = [Tier(str(tmp_path / name), 1 << 20) for name in ("a", "b")]
    for tier in tiers:
        Path(tier.path).mkdir()
    plain = write(tmp_path / "plain", records(60), 4 * KIB, 64 * KIB)
    real, full = os.writev, []

    def writev(descriptor: int, pieces: Sequence[memoryview]) -> int:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if "/a/" in str(path) and path.stat().st_size > 12 * KIB:
            full.append(real(descriptor, [pieces[-1][:100]]))
            raise OSError(errno.ENOSPC, "full")
        return real(descriptor, pieces)

    monkeypatch.setattr(os, "writev", writev)
    spill_set = write(tmp_path / "set", records(60), 4 * KIB, 64 * KIB, places(tiers))
    assert full
    assert contents(spill_set) == contents(plain)
    assert spilled_bytes(tiers[0]) == 0
    assert list(Path(tiers[0].path).glob("**/set-*")) == [], "a set leaves no empty directory where it lies no more"


@pytest.mark.parametrize("spare", [False, True], ids=["alone", "with a spare"])
def test_a_tier_that_disappears_is_not_made_anew(tmp_path: Path, spare: bool) -> None:
    """Below an unmounted mount point nothing may be written: it would fill another disk."""
    gone = Tier(str(tmp_path / "gone"), None)
    (tmp_path / "spare").mkdir()
    tiers = [gone, Tier(str(tmp_path / "spare"), None)] if spare else [gone]
    if spare:
        assert len(read(write(tmp_path / "set", records(10), 4 * KIB, 8 * KIB, places(tiers)))) > 1
    else:
        with pytest.raises(StorageError, match=f"no longer a spill directory {tmp_path}/gone"):
            write(tmp_path / "set", records(10), 4 * KIB, 8 * KIB, places(tiers))
    assert not (tmp_path / "gone").exists()


def test_a_write_that_takes_few_bytes_at_once_goes_on_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = write(tmp_path / "plain", records(20), 4 * KIB, 16 * KIB)
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda descriptor, pieces: real(descriptor, [pieces[0][:700]]))
    assert contents(write(tmp_path / "set", records(20), 4 * KIB, 16 * KIB)) == contents(plain)


@pytest.mark.seed("E17")
def test_a_set_swept_away_under_its_writer_is_no_second_error(tmp_path: Path) -> None:
    """A zombie whose directory its successor has swept ends with its own error, and brings nothing back."""
    (tmp_path / "disk").mkdir()
    where = places([Tier(str(tmp_path / "disk"), 1 << 20)])

    def be_swept() -> None:
        with SetWriter(tmp_path / "set", 0, 8 * KIB, where) as writer:
            for pieces in segments_of(records(30), 4 * KIB):
                append(writer, pieces)
            for file in where[0].directory.iterdir():
                file.unlink()
            where[0].directory.rmdir()
            raise RuntimeError("its own error")

    with pytest.raises(RuntimeError, match="its own error"):
        be_swept()
    assert not where[0].directory.exists()


def test_no_tier_is_asked_for_more_than_one_file_and_a_segment_ahead(tmp_path: Path) -> None:
    """A tier with room for one segment takes a small set whole: room is reserved as it is used, not by the file."""
    (tmp_path / "shm").mkdir()
    tiers = [replace(Tier(str(tmp_path / "shm"), None), capacity=5 * KIB)]
    spill_set = write(tmp_path / "set", records(4), 2 * KIB, 1 << 26, places(tiers))
    assert len(in_tiers(spill_set)) == 1


def test_a_tier_that_had_to_be_left_is_asked_again_only_when_no_other_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file is carried out of the same tier twice, and yet no room is wasted before giving up."""
    tiers = [Tier(str(tmp_path / "a"), 24 * KIB), Tier(str(tmp_path / "b"), 22 * KIB + 512)]
    opened: list[str] = []
    real = Place.prepare
    monkeypatch.setattr(Place, "prepare", lambda self: opened.append(Path(self.tier.path).name) or real(self))
    for tier in tiers:
        Path(tier.path).mkdir()
    spill_set = write(tmp_path / "set", records(46), 1 * KIB, 10 * KIB, places(tiers))
    homes = [file.path.split("/")[-6] for file in in_tiers(spill_set)]
    assert homes == ["a", "a", "b", "b", "a"]
    assert opened == ["a", "a", "a", "b", "b", "a"], "only the third file had to move on"
    assert [held_in(tier) for tier in tiers] == [spilled_bytes(tier) for tier in tiers]


def test_room_is_reserved_ahead_and_what_is_not_used_is_given_back(tmp_path: Path) -> None:
    """The ledger's lock is taken for many segments at once, and a finished set holds what it has written, no more."""
    (tmp_path / "tier").mkdir()
    tier = Tier(str(tmp_path / "tier"), 10 << 20)
    asked = []

    class Counting(Reservations):
        def take(self, size: int) -> bool:
            asked.append(size)
            return super().take(size)

    place = Place(tier, tier.attempt(RECOVERY, 1, "spill", "set-1"), Counting(tier, RECOVERY, 1))
    spill_set = write(tmp_path / "set", records(300), 1 * KIB, 64 * KIB, [place])
    assert len(asked) * 50 < spill_set.segments
    written = sum(file.bytes for file in in_tiers(spill_set))
    other = Reservations(tier, "r-another", 1)
    assert other.take((10 << 20) - written)
    assert not other.take(1)


@pytest.mark.seed("000-06")
@pytest.mark.parametrize("is_full", [True, False])
def test_what_follows_a_file_on_disk_does_not_go_back_to_memory(tmp_path: Path, is_full: bool) -> None:
    """Also where memory has room again; a set that never left it stays there."""
    tiers = [Tier(str(tmp_path / "memory"), 1000), Tier(str(tmp_path / "disk"), None)]
    for tier in tiers:
        Path(tier.path).mkdir()
    memory, disk = (Place.of_attempt(tier, "r-1", 1, "set-0") for tier in tiers)
    memory.memory, disk.memory = True, False
    other = Reservations(tiers[0], "r-2", 1)
    assert other.take(1000 if is_full else 1)
    files = SetFiles([memory, disk])
    found = []
    for _ in range(2):
        files.append([memoryview(bytes(300))])
        file = files.close()
        assert file is not None
        found.append(file.memory)
        other.give_back(1000)
    assert found == ([False, False] if is_full else [True, True])
