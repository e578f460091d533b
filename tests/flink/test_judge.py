"""The judge names whatever is wrong with what a restored job saw. No Flink needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.flink.harness.job import Job
from tests.flink.harness.judge import Seen, Sight, Verdict, judge

JOB = Job(generators=2, records=40, keys=7)
IN_FLIGHT = [(generator, sequence) for generator in (0, 1) for sequence in range(10, 20)]


def _seen(identities: Iterable[tuple[int, int]], job: Job = JOB) -> Seen:
    """A job that had counted records 0 to 9 of each generator when its checkpoint was taken."""
    counts: dict[int, int] = {}
    for generator in range(job.generators):
        for sequence in range(10):
            counts[job.key(generator, sequence)] = counts.get(job.key(generator, sequence), 0) + 1
    sights = []
    for generator, sequence in identities:
        number = job.key(generator, sequence)
        counts[number] = counts.get(number, 0) + 1
        sights.append(Sight(generator, sequence, number, number % 2, True, True, counts[number]))
    return Seen(tuple(sights), dict.fromkeys(range(job.generators), 20))


EVERYTHING = [(generator, sequence) for generator in (0, 1) for sequence in range(10, 40)]


def test_nothing_wrong_is_exactly_once() -> None:
    verdict = judge(JOB, IN_FLIGHT, _seen(EVERYTHING))
    assert verdict == Verdict()
    assert verdict.exactly_once
    assert verdict.processed == 60


@pytest.mark.parametrize("missing", [(0, 10), (1, 19), (1, 20), (0, 39)])
def test_a_record_that_was_not_seen_is_lost(missing: tuple[int, int]) -> None:
    verdict = judge(JOB, IN_FLIGHT, _seen(each for each in EVERYTHING if each != missing))
    assert verdict == Verdict(lost=(missing,), miscounted=(JOB.key(*missing),))


def test_a_record_seen_twice_is_repeated() -> None:
    verdict = judge(JOB, IN_FLIGHT, _seen([*EVERYTHING, (1, 39)]))
    assert verdict == Verdict(repeated=((1, 39),), miscounted=(JOB.key(1, 39),))


def test_a_record_that_was_not_in_flight_is_extra() -> None:
    verdict = judge(JOB, IN_FLIGHT, _seen([(0, 3), *EVERYTHING]))
    assert verdict == Verdict(extra=((0, 3),), miscounted=(JOB.key(0, 3),))


def test_a_record_after_a_later_one_of_its_key_is_out_of_order() -> None:
    late = EVERYTHING[:30]
    late.append(late.pop(late.index((0, 20))))
    assert judge(JOB, IN_FLIGHT, _seen([*late, *EVERYTHING[30:]])) == Verdict(out_of_order=((0, 20),))
    rebalanced = replace(JOB, job="d")
    assert judge(rebalanced, IN_FLIGHT, _seen([*late, *EVERYTHING[30:]], rebalanced)) == Verdict()


@pytest.mark.parametrize(("flaw", "wrong"), [({"intact": False}, "damaged"), ({"home": False}, "misplaced")])
def test_a_record_that_is_damaged_or_elsewhere_is_named(flaw: dict[str, bool], wrong: str) -> None:
    seen = _seen(EVERYTHING)
    sights = tuple(sight._replace(**flaw) if sight.identity == (1, 25) else sight for sight in seen.sights)
    verdict = judge(JOB, IN_FLIGHT, replace(seen, sights=sights))
    assert getattr(verdict, wrong) == ((1, 25),)
    assert not verdict.exactly_once


def test_lost_state_shows_in_the_counts() -> None:
    seen = _seen(EVERYTHING)
    sights = tuple(sight._replace(so_far=1) if sight.key == 3 else sight for sight in seen.sights)
    assert judge(JOB, IN_FLIGHT, replace(seen, sights=sights)) == Verdict(miscounted=(3,))
