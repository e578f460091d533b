"""The ledger's own comparisons."""

from __future__ import annotations

import pytest

from cdr_core.audit.ledger import ChannelKey, Entry, Tally, require_partition
from cdr_core.errors import Unbalanced


def test_a_part_of_a_channel_that_the_source_does_not_have_is_a_difference() -> None:
    part = Entry(ChannelKey("exchange", 0, 1, 2), Tally(records=1, bytes=8))
    with pytest.raises(Unbalanced, match="1 records where 0 went in"):
        require_partition([], [part])
