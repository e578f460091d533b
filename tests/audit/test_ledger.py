"""The pipeline's own comparisons of ledgers: a difference is an error that names channel, kind and numbers."""

from __future__ import annotations

import numpy as np
import pytest

from cdr_core.audit.ledger import (
    NOTHING,
    ChannelKey,
    Ledger,
    Tally,
    join_ledgers,
    require_equal,
    require_others,
    require_partition,
)
from cdr_core.errors import Unbalanced
from cdr_core.flink.element_kinds import OTHER_KINDS


def ledger(line: int, tally: Tally, **others: int) -> Ledger:
    """One line; ``others`` by name."""
    tags = {name: tag for tag, name in OTHER_KINDS.items()}
    kinds = np.zeros((1, max(tags.values()) + 1), np.int64)
    for name, count in others.items():
        kinds[0, tags[name]] = count
    return Ledger.of(np.array([line]), np.array([tally.to_fold()], np.uint64), kinds)


def channel(number: int) -> ChannelKey:
    return ChannelKey("main", up=2, down=number)


def part(line: int) -> ChannelKey:
    return ChannelKey("main", up=2, down=1, new_down=line)


def test_a_part_of_a_channel_that_the_source_does_not_have_is_a_difference() -> None:
    parts = ledger(4, Tally(records=1, bytes=8))
    with pytest.raises(Unbalanced, match="1 records where 0 went in"):
        require_partition(NOTHING, parts, lambda lines: lines // 2, channel)


def test_a_line_followed_by_another_part_of_it_has_the_elements_of_both() -> None:
    first, second = Tally(1, 8, 3, 4, 5), Tally(2, 16, 5, 6, 7)
    joined = join_ledgers([ledger(3, first, watermark=2), ledger(3, second, watermark=1, latency_marker=4)])
    assert joined.tally(3) == first.then(second)
    assert joined.kinds() == {"watermark": 3, "latency_marker": 4}


def test_the_same_records_in_another_order_are_a_difference() -> None:
    with pytest.raises(Unbalanced, match="the 2 records to new subtask 0 changed their order"):
        require_equal("drain", ledger(0, Tally(2, 16, 3, 4, 5)), ledger(0, Tally(2, 16, 3, 4, 6)), part)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        ({}, "wrote 0 of kind watermark for new subtask 0 where there should be 3"),
        ({"watermark": 2}, "wrote 2 of kind watermark for new subtask 0 where there should be 3"),
        ({"watermark": 3, "latency_marker": 1}, "wrote 1 of kind latency_marker for new subtask 0 where"),
    ],
)
def test_an_element_too_few_or_too_many_is_named(found: dict[str, int], sentence: str) -> None:
    expected = ledger(0, Tally(), watermark=3)
    require_others("spill", "wrote", expected, expected, part)
    with pytest.raises(Unbalanced, match=sentence) as caught:
        require_others("spill", "wrote", expected, ledger(0, Tally(), **found), part)
    assert "exchange main, subtask 1, channel 2" in str(caught.value)


def test_a_line_that_a_ledger_does_not_have_is_empty() -> None:
    assert ledger(3, Tally(1, 8, 3, 4, 5)).tally(2) == Tally()
