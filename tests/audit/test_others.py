"""The ledger of elements that are not records: differences are errors that name channel, kind and numbers."""

from __future__ import annotations

import pytest

from cdr_core.audit.ledger import ChannelKey, Entry, Tally, require_accounted, require_others
from cdr_core.errors import Unbalanced

WHOLE = ChannelKey("main", up=2, down=1)
PART = ChannelKey("main", up=2, down=1, new_down=0)


def test_an_entry_followed_by_another_has_the_elements_of_both() -> None:
    first = Entry(PART, Tally(records=1, chain=5), {"watermark": 2})
    second = Entry(PART, Tally(records=2, chain=7), {"watermark": 1, "latency_marker": 4})
    joined = first.then(second)
    assert joined.others == {"watermark": 3, "latency_marker": 4}
    assert joined.tally == first.tally.then(second.tally)
    assert Entry.from_json(joined.to_json()) == joined


def test_what_is_accounted_for_is_what_there_was() -> None:
    source = [Entry(WHOLE, Tally(), {"watermark": 3, "record_attributes": 1})]
    require_accounted("filter", source, {WHOLE: {"watermark": 3, "record_attributes": 1}})
    require_accounted("filter", [Entry(WHOLE, Tally())], {})


@pytest.mark.parametrize(
    ("accounts", "sentence"),
    [
        ({}, "met 0 of kind watermark where there should be 3"),
        ({WHOLE: {"watermark": 2}}, "met 2 of kind watermark where there should be 3"),
        ({WHOLE: {"watermark": 3, "latency_marker": 1}}, "met 1 of kind latency_marker where there should be 0"),
    ],
)
def test_an_element_too_few_or_too_many_is_named(accounts: dict[ChannelKey, dict[str, int]], sentence: str) -> None:
    with pytest.raises(Unbalanced, match=sentence) as caught:
        require_accounted("filter", [Entry(WHOLE, Tally(), {"watermark": 3})], accounts)
    assert "exchange main, subtask 1, channel 2" in str(caught.value)


@pytest.mark.parametrize("written", [{}, {"watermark": 1}, {"watermark": 2, "closing_watermark": 1}])
def test_each_part_holds_the_elements_it_should(written: dict[str, int]) -> None:
    require_others("spill", {PART: written}, [Entry(PART, Tally(), written)])
    with pytest.raises(Unbalanced, match="for new subtask 0"):
        require_others("spill", {PART: written}, [Entry(PART, Tally(), {**written, "latency_marker": 1})])


def test_a_part_that_nobody_expected_must_hold_none() -> None:
    require_others("spill", {}, [Entry(PART, Tally(records=1))])
    with pytest.raises(Unbalanced, match="wrote 1 of kind watermark"):
        require_others("spill", {}, [Entry(PART, Tally(), {"watermark": 1})])
