"""Our elements against an oracle's: one by one, in every channel."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cdr_core.channels.channel_source import open_checkpoint
from cdr_core.channels.element_reader import element_batches
from cdr_core.planning.job_spec import parse_spec
from cdr_core.planning.parallelism import parse_parallelism
from cdr_core.planning.plan import PlannedExchange, make_plan
from tests.support.oracle import ChannelId, Element, Oracle


def assert_elements_equal(checkpoint: Path | str, spec: str, oracle: Oracle) -> int:
    """What we read in the checkpoint is exactly what the oracle says; the number of records."""
    plan = make_plan(open_checkpoint(str(checkpoint)), parse_spec(spec), parse_parallelism("same"), 1 << 30)
    expected = dict(oracle.by_channel)
    records = 0
    for place, channel in enumerate(plan.channels):
        exchange = plan.exchanges[channel.exchange]
        rows = [row for batch in element_batches(plan, place) for row in batch.to_pylist()]
        theirs = expected.pop(ChannelId(exchange.gate, channel.up, channel.down), ())
        assert len(rows) == len(theirs)
        for row, element in zip(rows, theirs, strict=True):
            _assert_equal(row, element, exchange)
            records += element.is_record
    assert not any(expected.values())
    return records


def element_rows(checkpoint: Path | str, spec: str) -> Iterator[dict[str, Any]]:
    """Every element that we read in the checkpoint."""
    plan = make_plan(open_checkpoint(str(checkpoint)), parse_spec(spec), parse_parallelism("same"), 1 << 30)
    for number in range(len(plan.channels)):
        for batch in element_batches(plan, number):
            yield from batch.to_pylist()


def _assert_equal(row: dict[str, Any], element: Element, exchange: PlannedExchange) -> None:
    mine = (row["pos"], row["kind"], row["from_state"], row["ts"])
    assert mine == (element.pos, element.kind, element.from_state, element.ts)
    if not element.is_record:
        assert row[exchange.name] is None
        return
    key, gen, seq, payload = row[exchange.name].values()
    data = payload.encode() if isinstance(payload, str) else payload
    assert (key, gen, seq) == (element.key, element.gen, element.seq)
    assert (len(data), zlib.crc32(data)) == (element.payload_len, element.payload_crc32)
    if exchange.key:
        assert row["key_group"] == element.key_group
