"""Recovered rows beside what Flink's own classes read."""

from __future__ import annotations

import zlib
from collections import defaultdict
from typing import Any

from tests.support.checkpoints import FixtureCheckpoint


def compare(rows: list[dict[str, Any]], checkpoint: FixtureCheckpoint, new: int, keyed: bool = True) -> None:
    """Row by row against the oracle, and order per (virtual channel, new subtask)."""
    expected = {(e.channel.gate, e.channel.up, e.channel.down, e.pos): e for e in checkpoint.oracle.records}
    last: dict[tuple[int, ...], int] = defaultdict(lambda: -1)
    for row in rows:
        element = expected.pop((row["gate"], row["up"], row["down"], row["pos"]))
        value = row[row["exchange"]]
        key, gen, seq, payload = value.values()
        data = payload.encode() if isinstance(payload, str) else payload
        assert (key, gen, seq, row["ts"]) == (element.key, element.gen, element.seq, element.ts)
        assert (len(data), zlib.crc32(data)) == (element.payload_len, element.payload_crc32)
        if keyed:
            assert row["key_group"] == element.key_group
            assert row["new_down"] == element.owner(new)
        order = (row["gate"], row["up"], row["down"], row["new_down"])
        assert last[order] < row["pos"]
        last[order] = row["pos"]
    assert not expected, f"{len(expected)} records are missing"
