"""Records that the drain reads from the source in place: what becomes of them when the source goes or changes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from cdr_core import settings as settings_module
from cdr_core.channels import channel_source as source
from cdr_core.channels import source_index
from cdr_core.drain import routed_delivery as delivery
from cdr_core.errors import CdrError, DiskFull, JobFailed, SettingsRefused, SourceChanged
from cdr_core.metadata import DrillOutcome, Phase
from cdr_core.phases import spill as phase_spill
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.runtime.driver import PhaseRun
from cdr_core.runtime.unit_runner import run_unit
from cdr_core.spill.scratch_ring import Scratch
from tests.drill.conftest import Rehearsal, rehearsal
from tests.support import inline, output
from tests.support.bucket import Bucket
from tests.support.generated import generated

__all__ = ["rehearsal"]

Started = Any
Damage = Callable[[list[Path]], None]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Two megabytes on each of four channels, which keep their owners."""
    return Path(generated(tmp_path / "chk-1", "2", "8MB", record_bytes="200-400"))


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDR_SEGMENT_SIZE", "256KiB")
    monkeypatch.setenv("CDR_MEMORY_BUDGET", "4MiB")


def files_of(checkpoint: Path) -> list[Path]:
    return [path for path in sorted(checkpoint.rglob("*")) if path.is_file() and path.name != "_metadata"]


def begin(where: Path | str, to: Path, parallelism: str = "2") -> Started:
    source.open_planned.cache_clear()
    source._fetched.cache_clear()
    spec = Path(f"{to.parent / 'chk-1'}.yaml").read_text()
    return inline.start(RecoveryRequest(str(where), spec, parallelism, f"parquet:{to}"))


def at_read(monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[], None]) -> None:
    """When a drain has read so many segments."""
    seen = iter(range(1, 10**6))

    def reach(point: str) -> None:
        if point == "drain.read" and next(seen) == number:
            do()

    monkeypatch.setattr(delivery, "reach", reach)


def routing(started: Started) -> dict[str, int]:
    repository, recovery, _ = started
    found: dict[str, int] = next(row.result for row in repository.phases(recovery) if row.name is Phase.DRAIN)[
        "routing"
    ]
    return found


def keys(rows: list[dict[str, Any]]) -> list[tuple[int, ...]]:
    return [(row["gate"], row["up"], row["down"], row["pos"]) for row in rows]


def expected_rows(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """By way of copies, as every recovery went before."""
    with monkeypatch.context() as patch:
        patch.setenv("CDR_MATERIALISE", "true")
        started = begin(checkpoint, tmp_path / "copied")
        inline.run_all(*started)
        assert routing(started)["by_reference"] == 0 < routing(started)["spilled"] == routing(started)["replayed"]
    return output.rows(tmp_path / "copied")


@pytest.mark.parametrize("parallelism", ["1", "2", "3"])
def test_rows_are_the_same_in_place_and_copied(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: str
) -> None:
    """One channel into another's place, merged with their watermarks left out between long runs, or divided."""
    found = {}
    for materialise in ("false", "true"):
        monkeypatch.setenv("CDR_MATERIALISE", materialise)
        to = tmp_path / f"out-{materialise}"
        started = begin(checkpoint, to, parallelism)
        assert inline.run_all(*started)["verdict"] == "balanced"
        found[materialise] = output.rows(to)
        ways = routing(started)
        assert (ways["by_reference"] > 0) == (materialise == "false" and parallelism != "3")
        assert ways["by_reference"] == ways["handed_over"]
        assert ways["spilled"] == ways["replayed"]
    assert found["true"] == found["false"] != []


@pytest.mark.seed("000-03", "000-06")
@pytest.mark.parametrize("parallelism", ["2", "3"])
def test_what_fits_into_memory_never_touches_a_disk(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: str
) -> None:
    """Long runs stay in the source, records that are divided go to a tier of memory."""
    with TemporaryDirectory(dir="/dev/shm") as memory:
        monkeypatch.setenv("CDR_SPILL_DIRS", f"{memory}:64MiB,{tmp_path}")
        started = begin(checkpoint, tmp_path / "out", parallelism)
        inline.run_all(*started)
        ways = routing(started)
    assert ways["spilled"] == ways["replayed"] == 0 < ways["handed_over"]
    assert ways["by_reference"] == (ways["handed_over"] if parallelism == "2" else 0)


@pytest.mark.seed("000-06")
def test_once_something_of_a_subtask_is_on_disk_nothing_more_goes_to_memory(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDR_MATERIALISE", "true")
    monkeypatch.setenv("CDR_SPILL_FILE_SIZE", "256KiB")
    with TemporaryDirectory(dir="/dev/shm") as memory:
        monkeypatch.setenv("CDR_SPILL_DIRS", f"{memory}:1MiB,{tmp_path}")
        started = begin(checkpoint, tmp_path / "out")
        inline.run_to(Phase.SPILL, *started)
        units = started[0].units(started[1], Phase.SPILL)
        in_memory = [[file["memory"] for file in unit.result["files"][:-1]] for unit in units]
        assert inline.run_all(*started)["verdict"] == "balanced"
    assert any(in_memory[0])
    assert all(each == sorted(each, reverse=True) for each in in_memory), "memory first, then disk, and never back"


@pytest.mark.seed("000-04", "000-05", "000-07", "000-08")
@pytest.mark.parametrize("scratch", ["600KiB", "64MiB"])
def test_an_output_that_stalls_sends_what_is_fetched_to_disk_and_it_comes_back_in_order(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Bucket, scratch: str
) -> None:
    """The reader goes on while there is room on scratch disk; at the end the rest is delivered from there."""
    expected = expected_rows(checkpoint, tmp_path, monkeypatch)
    monkeypatch.setenv("CDR_DRAIN_SCRATCH", scratch)
    monkeypatch.setattr(delivery, "MOST_AHEAD", 1)
    make_output_slow(monkeypatch)
    started = begin(bucket.upload(checkpoint), tmp_path / "out")
    assert inline.run_all(*started)["verdict"] == "balanced"
    assert output.rows(tmp_path / "out") == expected
    ways, copied = routing(started), on_disk(started)
    assert ways["by_reference"] > ways["spilled"] - copied == ways["replayed"] - copied > 0
    assert ways["handed_over"] > 0
    run = (started[0].receipt(started[1]) or {})["run"]
    assert run["fetched_bytes"] > 1.9 * ways["by_reference"], "once by read, once by drain"


@pytest.mark.seed("000-03", "000-08")
def test_merged_channels_of_an_object_store_stay_there_and_are_fetched_twice(tmp_path: Path, bucket: Bucket) -> None:
    """`read` notes the few elements that leave the stream, so `filter` needs no bytes, and nothing large is copied."""
    checkpoint = Path(generated(tmp_path / "chk-1", "2", "8MB", record_bytes="2000-4000"))
    local = begin(checkpoint, tmp_path / "local", "1")
    inline.run_all(*local)
    started = begin(bucket.upload(checkpoint), tmp_path / "out", "1")
    assert inline.run_all(*started)["verdict"] == "balanced"
    assert output.rows(tmp_path / "out") == output.rows(tmp_path / "local") != []
    ways, size = routing(started), sum(file.stat().st_size for file in files_of(checkpoint))
    assert ways["by_reference"] > 0.95 * size
    assert ways["spilled"] == ways["replayed"] == on_disk(started) < 0.05 * size
    fetched = {
        phase: sum(unit.result.get("fetched_bytes", 0) for unit in started[0].units(started[1], phase))
        for phase in (Phase.READ, Phase.FILTER, Phase.DRAIN)
    }
    assert fetched[Phase.FILTER] < 0.05 * size
    assert sum(fetched.values()) < 2.05 * size


def test_what_is_read_in_place_needs_no_room_in_a_tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, tier = Path(generated(tmp_path / "chk-1", "2", "8MB", record_bytes="2000-4000")), tmp_path / "tier"
    tier.mkdir()
    monkeypatch.setenv("CDR_SPILL_DIRS", f"{tier}:1MiB")
    assert inline.run_all(*begin(checkpoint, tmp_path / "out", "1"))["verdict"] == "balanced"


def test_spill_refuses_tiers_too_small_for_what_the_filter_scattered_and_goes_on_with_larger_ones(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many watermarks lie between records, nobody knows before they are read."""
    small, large = tmp_path / "small", tmp_path / "large"
    small.mkdir()
    large.mkdir()
    monkeypatch.setenv("CDR_SPILL_DIRS", f"{small}:2MiB")
    started = repository, recovery, settings = begin(checkpoint, tmp_path / "out", "1")
    inline.run_to(Phase.FILTER, *started)
    with pytest.raises(SettingsRefused, match=r"small can take 2097152 bytes, and up to \d{7} will be spilled"):
        inline.run(repository, recovery, Phase.SPILL, settings)
    assert not list(small.iterdir())
    monkeypatch.setenv("CDR_SPILL_DIRS", f"{small}:2MiB,{large}:8MiB")
    assert inline.run_all(repository, recovery, settings_module.load())["verdict"] == "balanced"
    assert on_disk(started) > 2 << 20


def test_a_retried_spill_looks_for_room_for_what_is_left_alone(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sets of the attempt before lie on the disk already, so there is less free than all of them take."""
    monkeypatch.setenv("CDR_MATERIALISE", "true")
    repository, recovery, settings = begin(checkpoint, tmp_path / "out")
    inline.run_to(Phase.FILTER, repository, recovery, settings)
    asked: list[int] = []
    monkeypatch.setattr(phase_spill, "refuse_unfit", lambda dirs, place, stored, *_, **__: asked.append(stored))
    with pytest.raises(JobFailed):
        inline.run(repository, recovery, Phase.SPILL, settings, FirstUnitOnly())
    inline.run(repository, recovery, Phase.SPILL, settings)
    assert 0 < asked[1] < 0.7 * asked[0]
    assert inline.run_all(repository, recovery, settings)["verdict"] == "balanced"


class FirstUnitOnly(inline.InlineWorkers):
    """The job ends after its first unit."""

    def run(self, drive: PhaseRun, payload: str, units: Sequence[str], on_poll: Callable[[], None]) -> None:
        super().run(drive, payload, units[:1], on_poll)


def on_disk(started: Started) -> int:
    """What spill copied."""
    return sum(unit.result["on_disk"] for unit in started[0].units(started[1], Phase.SPILL))


class RetryingWorkers(inline.InlineWorkers):
    """A unit that fails is done again, as Spark does."""

    def run(self, drive: PhaseRun, payload: str, units: Sequence[str], on_poll: Callable[[], None]) -> None:
        for unit in units:
            with suppress(OSError):
                run_unit(payload, unit, 0)
            run_unit(payload, unit, 1)
            on_poll()


def test_counters_go_on_after_a_crash(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was counted up to a snapshot stays, and what is done again is not read from the start of the set."""
    monkeypatch.setenv("CDR_OUTPUT_FILE_SIZE", "256KiB")
    whole = begin(checkpoint, tmp_path / "whole")
    inline.run_all(*whole)
    started = begin(checkpoint, tmp_path / "out")
    inline.run_to(Phase.SPILL, *started)

    def fail() -> None:
        raise OSError("the task is lost")

    at_read(monkeypatch, 12, fail)
    inline.run(started[0], started[1], Phase.DRAIN, started[2], RetryingWorkers())
    assert inline.run_all(*started)["verdict"] == "balanced"
    first, second = routing(whole), routing(started)
    assert second["handed_over"] == first["handed_over"], "what was in no snapshot was not counted"
    assert second["by_reference"] == first["by_reference"], "what was read ahead and not delivered was not counted"


def unlink(files: list[Path]) -> None:
    for file in files:
        file.unlink()


def replaced(files: list[Path]) -> None:
    """As a program does that writes a new file and renames it over the old one."""
    for file in files:
        other = file.with_suffix(".new")
        other.write_bytes(bytes(file.stat().st_size))
        other.replace(file)


def truncate(files: list[Path]) -> None:
    for file in files:
        os.truncate(file, 1000)


def flip(files: list[Path]) -> None:
    """One byte in the second half of each file."""
    for file in files:
        with file.open("r+b") as opened:
            opened.seek(file.stat().st_size * 3 // 4)
            byte = opened.read(1)
            opened.seek(-1, os.SEEK_CUR)
            opened.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("damage", [unlink, replaced])
def test_a_pinned_source_that_is_removed_or_replaced_is_drained_to_the_end(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Damage
) -> None:
    expected = expected_rows(checkpoint, tmp_path, monkeypatch)
    started = begin(checkpoint, tmp_path / "out")

    def both() -> None:
        damage([*files_of(checkpoint), checkpoint / "_metadata"])

    at_read(monkeypatch, 3, both)
    assert inline.run_all(*started)["verdict"] == "balanced"
    assert output.rows(tmp_path / "out") == expected
    assert routing(started)["by_reference"] > 0
    assert not list((started[2].home).rglob("pins/*")), "links go when the recovery is done"


@pytest.mark.parametrize("mode", ["at-end", "per-checkpoint"])
@pytest.mark.parametrize(
    ("damage", "pinned"),
    [(truncate, True), (flip, True), (unlink, False), (replaced, False), (truncate, False), (flip, False)],
    ids=lambda value: {True: "pinned", False: "not pinned"}[value] if isinstance(value, bool) else value.__name__,
)
def test_a_source_that_changes_is_one_sentence_and_nothing_wrong_is_published(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Damage, pinned: bool, mode: str
) -> None:
    """A link keeps a file that is removed or replaced. What is changed in place has no other copy."""
    expected = expected_rows(checkpoint, tmp_path, monkeypatch)
    kept = {file: file.read_bytes() for file in files_of(checkpoint)}
    monkeypatch.setenv("CDR_COMMIT", mode)
    monkeypatch.setenv("CDR_OUTPUT_FILE_SIZE", "256KiB")
    monkeypatch.setenv("CDR_CHECKPOINT_INTERVAL", "10ms")
    if not pinned:
        monkeypatch.setenv("CDR_SOURCE_IMMUTABLE", "true")
        monkeypatch.setattr(source_index, "_pinned", lambda *_: {})
    started = begin(checkpoint, tmp_path / "out")
    at_read(monkeypatch, 6, lambda: damage(files_of(checkpoint)))
    with pytest.raises(SourceChanged, match=f"{re.escape(str(checkpoint))}.* is gone or was changed") as error:
        inline.run_all(*started)
    assert "/pins/" not in str(error.value), "the user knows the source file, not its link"
    published = output.rows(tmp_path / "out") if output.manifest(tmp_path / "out") is not None else []
    by_key = dict(zip(keys(expected), expected, strict=True))
    assert [by_key[key] for key in keys(published)] == published
    assert len(set(keys(published))) == len(published) < len(expected)
    for file, data in kept.items():
        file.write_bytes(data)
    assert inline.run_all(*started)["verdict"] == "balanced"
    assert sorted(keys(output.rows(tmp_path / "out"))) == sorted(keys(expected))


def test_a_source_that_can_be_neither_pinned_nor_relied_on_is_copied(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_index, "_pinned", lambda *_: {})
    started = begin(checkpoint, tmp_path / "out")
    inline.run_to(Phase.SPILL, *started)
    unlink(files_of(checkpoint))
    assert inline.run_all(*started)["verdict"] == "balanced"
    assert routing(started)["by_reference"] == 0


@pytest.mark.parametrize("how", ["gone", "changed"])
def test_an_object_that_changes_while_it_is_drained_is_one_sentence(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Bucket, how: str
) -> None:
    uri = bucket.upload(checkpoint)
    started = begin(uri, tmp_path / "out")

    def damage() -> None:
        for file in files_of(checkpoint):
            name = f"{uri}/{file.relative_to(checkpoint)}"
            if how == "gone":
                bucket.delete(name)
            else:
                bucket.put(name, bytes(file.stat().st_size))

    at_read(monkeypatch, 3, damage)
    with pytest.raises(SourceChanged, match=f"{re.escape(uri)}.* is gone or was changed"):
        inline.run_all(*started)
    assert output.manifest(tmp_path / "out") is None
    for file in files_of(checkpoint):
        bucket.put(f"{uri}/{file.relative_to(checkpoint)}", file.read_bytes())
    assert inline.run_all(*started)["verdict"] == "balanced", "the same bytes have the same ETag"


def test_a_drill_does_not_blame_a_checkpoint_whose_source_went(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flink may subsume a checkpoint while a drill reads it."""
    for module in ("batch_scan", "batch_selection", "channel_scan"):
        monkeypatch.setattr(f"cdr_core.channels.{module}.WORTH_A_SUM", 1)
    monkeypatch.setenv("CDR_SOURCE_IMMUTABLE", "true")
    monkeypatch.setattr(source_index, "_pinned", lambda *_: {})
    at_read(monkeypatch, 1, lambda: truncate(files_of(rehearsal.checkpoint)))
    drill = rehearsal.drill(rehearsal.plan(parallelism="3"))
    assert drill.result is DrillOutcome.COULD_NOT_RUN, drill.checks


@pytest.mark.parametrize("how", ["lost", "cut short", "flipped"])
def test_scratch_that_is_lost_or_damaged_is_fetched_again(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Bucket, how: str
) -> None:
    """Scratch disk is a cache. With room for one segment, what was fetched meanwhile waits there."""
    expected = expected_rows(checkpoint, tmp_path, monkeypatch)
    read, hurt = Scratch.read, iter(range(10**6))

    def damaged(self: Scratch, offset: int, length: int) -> Any:
        data = read(self, offset, length)
        if next(hurt) % 3:
            return data
        if how == "flipped":
            data[len(data) // 2] ^= 1
        return data[: {"lost": 0, "cut short": len(data) - 1, "flipped": len(data)}[how]]

    monkeypatch.setattr(Scratch, "read", damaged)
    monkeypatch.setattr(delivery, "MOST_AHEAD", 1)
    make_output_slow(monkeypatch)
    started = begin(bucket.upload(checkpoint), tmp_path / "out")
    assert inline.run_all(*started)["verdict"] == "balanced"
    assert output.rows(tmp_path / "out") == expected
    ways = routing(started)
    assert ways["spilled"] > ways["replayed"] > 0


def make_output_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the reader is ahead."""
    from time import sleep

    from cdr_core.drain.subtask_output import TableOutput

    write = TableOutput.write

    def slowly(self: TableOutput, segment: Any, skip: Any) -> None:
        sleep(0.05)
        write(self, segment, skip)

    monkeypatch.setattr(TableOutput, "write", slowly)


def test_a_scratch_disk_that_is_full_fails_cleanly(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Bucket
) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(delivery, "MOST_AHEAD", 1)
    make_output_slow(monkeypatch)
    started = begin(bucket.upload(checkpoint), tmp_path / "out")
    inline.run_to(Phase.SPILL, *started)
    with monkeypatch.context() as patch:
        patch.setattr("cdr_core.spill.scratch_ring.os.pwrite", full)
        with pytest.raises(DiskFull):
            inline.run(started[0], started[1], Phase.DRAIN, started[2])
    assert inline.run_all(*started)["verdict"] == "balanced"


def test_a_scratch_disk_without_room_waits(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Bucket
) -> None:
    """With less room than a segment nothing is spilled, and everything arrives."""
    monkeypatch.setenv("CDR_DRAIN_SCRATCH", "1KiB")
    monkeypatch.setattr(delivery, "MOST_AHEAD", 1)
    make_output_slow(monkeypatch)
    started = begin(bucket.upload(checkpoint), tmp_path / "out")
    assert inline.run_all(*started)["verdict"] == "balanced"
    assert routing(started)["spilled"] == 0 < routing(started)["handed_over"]


def test_a_ring_keeps_what_it_holds_and_no_more_than_its_capacity(tmp_path: Path) -> None:
    """Bytes of any length, first in, first out, over the end of the ring again and again."""
    place = tmp_path / "made" / "by it"
    scratch, draw = Scratch(place, 1000), np.random.default_rng(7)
    waiting: list[Any] = []
    wrapped = 0
    for _ in range(3000):
        data = draw.integers(0, 256, int(draw.integers(1, 400)), np.uint8)
        while not scratch.fits(len(data)) or (waiting and draw.random() < 0.3):
            kept, bytes_kept = waiting.pop(0)
            found = scratch.take(kept)
            assert found is not None
            assert found.tobytes() == bytes_kept
        kept = scratch.keep(data)
        wrapped += bool(waiting) and kept.offset < waiting[-1][0].offset
        waiting.append((kept, data.tobytes()))
        places = sorted((each.offset, each.offset + each.length) for each, _ in waiting)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(places))
        assert places[-1][1] <= 1000
    assert wrapped > 100
    assert not scratch.fits(1001)
    scratch.close()
    assert list(place.iterdir()) == [], "it has no name"


def test_an_error_of_the_source_is_a_refusal_that_no_salvage_takes_for_damage() -> None:
    assert issubclass(SourceChanged, CdrError)
    assert (SourceChanged.exit_code, SourceChanged.retry_helps, SourceChanged.remedy) == (3, False, ())
