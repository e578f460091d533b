"""Old to new subtasks: nobody is missed, everybody is owned once."""

from __future__ import annotations

import pytest

from cdr_core.flink.keys import key_group_range, owner
from cdr_core.planning.job_spec import Partitioner
from cdr_core.planning.subtask_mapping import new_channel, new_owners


@pytest.mark.parametrize("old", range(1, 17))
@pytest.mark.parametrize("new", range(1, 17))
def test_every_key_group_of_an_old_subtask_is_owned_by_one_of_its_new_ones(old: int, new: int) -> None:
    for down in range(old):
        first, last = key_group_range(down, old, 128)
        needed = sorted({owner(group, new, 128) for group in range(first, last + 1)})
        assert list(new_owners(Partitioner.HASH, down, old, new, 128)) == needed


def test_the_range_that_flinks_own_mapping_misses_is_covered() -> None:
    readers = [down for down in range(252) if 183 in new_owners(Partitioner.HASH, down, 252, 233, 252)]
    assert readers == [198, 199]


@pytest.mark.parametrize("partitioner", [Partitioner.REBALANCE, Partitioner.SHUFFLE, Partitioner.GLOBAL])
def test_without_a_key_an_old_subtask_has_exactly_one_new_one(partitioner: Partitioner) -> None:
    for old in range(1, 17):
        for new in range(1, 17):
            for down in range(old):
                (single,) = new_owners(partitioner, down, old, new, 128)
                assert 0 <= single < new
                assert single == 0 or old == new or partitioner is not Partitioner.GLOBAL


def test_the_same_parallelism_is_the_identity() -> None:
    for partitioner in Partitioner:
        assert [new_owners(partitioner, down, 5, 5, 128) for down in range(5)] == [(down,) for down in range(5)]


def test_an_old_upstream_subtask_has_exactly_one_new_channel() -> None:
    assert [new_channel(up, 3) for up in range(7)] == [0, 1, 2, 0, 1, 2, 0]
