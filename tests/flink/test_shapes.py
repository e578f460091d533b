"""Graphs and state of which no checkpoint is shipped: cdr re-writes what was made just now, a real Flink goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.flink.harness import Job, Verdict, judge, restore
from tests.flink.harness.judge import Seen, Sight, out_of_order
from tests.flink.shapes import _BYTES, HASHED, KEYED, ROCKSDB, in_flight, made, rewritten, spec_of

FORCED = {"execution.checkpointing.unaligned.forced": "true"}
"""Or Flink refuses a custom partitioner: it cannot rescale what is in flight there. Newer ones store nothing there."""

JOB = Job(records=4000, checkpoints=1, fill_millis=3000)


PARTITIONED = {
    "shuffle, 4 to 3": ("2.3.0", "shuffle", 4, 3, 3),
    "shuffle, 3 to 5": ("2.3.0", "shuffle", 3, 5, 5),
    "global, 3 to 2": ("2.3.0", "global", 3, 2, 2),
    "global, 2 to 4": ("2.3.0", "global", 2, 4, 4),
    "rebalance, 3 to 2 behind the 3 sources that were": ("2.3.0", "rebalance", 3, 3, 2),
    "rebalance, 3 to 5 behind the 3 sources that were": ("2.3.0", "rebalance", 3, 3, 5),
    "rebalance, 3 as it is behind 2 instead of 3 sources": ("2.3.0", "rebalance", 3, 2, 3),
    "custom, 3 to 2": ("2.0.2", "custom", 3, 2, 2),
    "custom, 3 to 5": ("1.20.5", "custom", 3, 5, 5),
    "custom, 3 as it is": ("1.20.5", "custom", 3, 3, 3),
    "custom, 3 to 2 behind the 3 sources that were": ("2.0.2", "custom", 3, 3, 2),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if at == 0 else pytest.mark.soak) for at, name in enumerate(PARTITIONED)]
)
def test_records_of_every_partitioner_are_seen_once_where_it_sends_them(flink: str, tmp_path: Path, name: str) -> None:
    version, partitioner, old, sources, parallelism = PARTITIONED[name]
    custom = partitioner == "custom"
    job = replace(
        JOB,
        version=version,
        job="p",
        partitioner=partitioner,
        parallelism=old,
        sources=old,
        generators=old,
        flink=FORCED if custom else {},
    )
    owner = ", owner: tests.flink.owners:by_remainder" if custom else ""
    spec = spec_of(("main", "gen", 0, "slow", 0, f"{{partitioner: {partitioner}, record: '{_BYTES}'{owner}}}"))
    checkpoint = made(job, tmp_path)
    waiting = in_flight(checkpoint, spec, tmp_path)
    assert len(waiting) > 100
    out = rewritten(checkpoint, spec, _wish(sources, parallelism), tmp_path)
    seen = restore(replace(job, sources=sources), out, parallelism)
    assert judge(job, waiting, seen) == Verdict()
    # Flink 2.0 passes a custom exchange of unlike ends through its rescaling, also its own checkpoint as it was.
    unlike = custom and sources != parallelism
    assert seen.rescaled <= (_rescaled_by_itself(job, sources, parallelism, tmp_path) if unlike else 0)
    if custom:
        assert all(sight.subtask == sight.key % parallelism for sight in seen.sights)
        assert out_of_order(seen.sights) == ()
    if partitioner == "global":
        assert {sight.subtask for sight in seen.sights} == {0}


def _rescaled_by_itself(job: Job, sources: int, parallelism: int, folder: Path) -> int:
    """In how many inputs Flink takes data apart when it restores its own checkpoint, as it was, of such a job."""
    own = replace(job, sources=sources, parallelism=parallelism)
    return restore(own, made(own, folder / "own"), parallelism).rescaled


def _wish(sources: int, parallelism: int) -> str:
    """Chained operators by name, those that have state."""
    return f"gen={sources},gen-numbers={sources},slow={parallelism}"


@pytest.mark.soak
@pytest.mark.parametrize(("sources", "parallelism"), [(3, 2), (3, 5), (2, 3), (5, 3), (2, 5)])
def test_keyed_records_are_right_where_the_ends_of_their_exchange_differ(
    flink: str, tmp_path: Path, sources: int, parallelism: int
) -> None:
    job = replace(JOB, sources=3)
    checkpoint = made(job, tmp_path)
    waiting = in_flight(checkpoint, KEYED, tmp_path)
    out = rewritten(checkpoint, KEYED, _wish(sources, parallelism), tmp_path)
    seen = restore(replace(job, sources=sources), out, parallelism)
    assert (seen.rescaled, judge(job, waiting, seen)) == (0, Verdict())


@pytest.mark.soak
@pytest.mark.parametrize("parallelism", [2, 3, 5])
def test_a_union_of_two_streams_is_restored_exactly_once(flink: str, tmp_path: Path, parallelism: int) -> None:
    spec = spec_of(("left", "gen", 0, "slow", 0, HASHED), ("right", "gen2", 0, "slow", 1, HASHED))
    job = replace(JOB, job="u")
    checkpoint = made(job, tmp_path)
    waiting = in_flight(checkpoint, spec, tmp_path)
    assert {generator // 100 for generator, _ in waiting} == {0, 1}
    seen = restore(job, rewritten(checkpoint, spec, str(parallelism), tmp_path), parallelism)
    assert (seen.rescaled, judge(job, waiting, seen)) == (0, Verdict())


@pytest.mark.soak
@pytest.mark.parametrize("parallelism", [2, 5])
def test_a_side_output_is_restored_beside_the_main_one(flink: str, tmp_path: Path, parallelism: int) -> None:
    """By a second partition of the same operator. What was in flight is told by the counts of every key."""
    spec = spec_of(("even", "split", 0, "slow", 0, HASHED), ("odd", "split", 1, "side", 0, HASHED))
    job = replace(JOB, job="o")
    checkpoint = made(job, tmp_path)
    out = rewritten(checkpoint, spec, str(parallelism), tmp_path)
    seen = restore(job, out, parallelism)
    assert seen.rescaled == 0
    side = [Sight(*cast(Any, row)) for (name, _), rows in seen.others.items() if name == "side" for row in rows]
    for sights, odd in ((seen.sights, 0), (side, 1)):
        wanted = Counter(job.key(*identity) for identity in job.all_records if identity[1] % 2 == odd)
        assert _final(sights) == wanted
        assert {sight.sequence % 2 for sight in sights} == {odd}
        assert max(Counter(sight.identity for sight in sights).values()) == 1
        assert all(sight.home and sight.intact for sight in sights)
        assert out_of_order(sights) == ()


def _final(sights: Iterable[Sight]) -> Counter[int]:
    final: Counter[int] = Counter()
    for sight in sights:
        final[sight.key] = max(final[sight.key], sight.so_far)
    return final


@pytest.mark.soak
@pytest.mark.parametrize("parallelism", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    "flink_options",
    [{}, {"execution.checkpointing.snapshot-compression": "true"}, ROCKSDB],
    ids=["heap", "compressed", "rocksdb"],
)
def test_keyed_state_of_every_kind_is_right_for_every_key(
    flink: str, tmp_path: Path, parallelism: int, flink_options: dict[str, str]
) -> None:
    """Also with a time to live, and an operator chained behind it that has state of its own."""
    job = replace(JOB, job="k", flink=flink_options, keys=300)
    checkpoint = made(job, tmp_path)
    waiting = in_flight(checkpoint, KEYED, tmp_path)
    seen = restore(job, rewritten(checkpoint, KEYED, str(parallelism), tmp_path), parallelism)
    assert (seen.rescaled, judge(job, waiting, seen)) == (0, Verdict())
    assert _told(seen, "kinds") == _kinds(job)
    (taken,) = zip(*_told(seen, "after").elements(), strict=True)
    assert sum(taken) == job.generators * job.records


def _kinds(job: Job) -> Counter[tuple[int, ...]]:
    """(key, records, records, no difference between two copies of their texts, and three times the sum of numbers)."""
    numbers: dict[int, list[int]] = {}
    for generator, sequence in job.all_records:
        numbers.setdefault(job.key(generator, sequence), []).append(generator * 1_000_000 + sequence)
    return Counter((key, len(all_), len(all_), 0, *[sum(all_)] * 3) for key, all_ in numbers.items())


def _told(seen: Seen, what: str) -> Counter[tuple[int, ...]]:
    return sum((Counter(rows) for (name, _), rows in seen.others.items() if name == what), Counter())


@pytest.mark.soak
@pytest.mark.parametrize("parallelism", [2, 5])
def test_broadcast_state_behind_a_rescaled_exchange_is_with_every_subtask(
    flink: str, tmp_path: Path, parallelism: int
) -> None:
    """Of an operator before which Flink stores nothing in flight."""
    job = replace(JOB, job="c")
    checkpoint = made(job, tmp_path)
    waiting = in_flight(checkpoint, KEYED, tmp_path)
    seen = restore(job, rewritten(checkpoint, KEYED, str(parallelism), tmp_path), parallelism)
    assert (seen.rescaled, judge(job, waiting, seen)) == (0, Verdict())
    ruled = _told(seen, "ruled")
    assert {squares for _, _, squares in ruled} == {30}
    assert max(ruled.values()) == 1, "a count was told twice, so state was lost or records came twice"
