"""Records that are longer than anything the filter puts together in memory."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cdr_core.errors import Where
from tests.kernels.keyed import record
from tests.rescale.drawn import UP, Drawn, cut, expected, filtered, group_of, key_on_its_way_to, plan_for

MB = 1_000_000
NEW, GROUPS = 5, 126


@pytest.mark.seed("001-12")
@pytest.mark.parametrize("kind", ["LONG", "STRING", "BIGINT"])
def test_six_megabytes_over_pages_of_four_kibibytes_go_to_their_owner(kind: str, tmp_path: Path) -> None:
    """Between small records and one of 2 MB, which is put together in memory, in both ways of the filter."""
    rng = random.Random(12)
    elements = []
    for size in (0, 10, 6 * MB, 10, 0, 2 * MB, 10):
        key = key_on_its_way_to(0, kind, rng)
        elements.append((record(kind, key, "r", 7) + rng.randbytes(size), group_of(kind, key) * NEW // GROUPS))
    drawn = Drawn(kind, plan_for(kind, 0, NEW, 3), 0, 4096, elements, [0, 4, len(elements)])
    channel = cut(rng, drawn.framed, Where(exchange="main", subtask=0, channel=UP))
    wanted = [expected(drawn, split) for split in drawn.splits()]
    for in_place in (True, False):
        found, counts = filtered(drawn, channel, tmp_path, in_place=in_place)
        assert found == wanted
        assert (counts.bytes, counts.spooled, counts.allocations) == (channel.size, 1, 1)
