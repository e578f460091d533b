"""Ledgers of phases as the driver handles them: what a line is, and what the database keeps of a ledger."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from cdr_core.audit.ledger import (
    BLOCK_LINES,
    BYTES,
    FIRST,
    KIND_NAMES,
    ORDER,
    RECORDS,
    SECOND,
    ChannelKey,
    Ledger,
    digest,
)
from cdr_core.errors import StorageError
from cdr_core.planning.plan import Plan
from cdr_core.storage import storage_for
from cdr_core.storage.atomic_write import making

Longs = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

PIECE = 1 << 20
"""Bytes that are hashed at once."""

MOST_PAIRS = 20_000
"""Pairs of old and new subtasks that the database keeps sums of; beyond that only new subtasks are told apart."""


def channel_key(plan: Plan) -> Callable[[int], ChannelKey]:
    """What a line of the source's ledger is."""

    def key(number: int) -> ChannelKey:
        channel = plan.channels[number]
        return ChannelKey(plan.exchanges[channel.exchange].name, channel.up, channel.down)

    return key


def line_key(plan: Plan) -> Callable[[int], ChannelKey]:
    """What a line of a ledger by channel and new subtask is."""

    def key(line: int) -> ChannelKey:
        lines = np.array([line])
        channel = plan.channels[int(plan.channels.of_lines(lines)[0])]
        index = plan.subtasks[int(plan.channels.subtask_of_lines(lines)[0])].index
        return ChannelKey(plan.exchanges[channel.exchange].name, channel.up, channel.down, index)

    return key


def key_columns(plan: Plan, ledger: Ledger, *, by_channel: bool = False) -> list[Longs]:
    """Exchange, up, down and new subtask of each line, as numbers; the last is −1 where a line is a whole channel."""
    channels = ledger.lines if by_channel else plan.channels.of_lines(ledger.lines)
    ends = [each[channels].astype(np.int64) for each in (plan.channels.exchange, plan.channels.up, plan.channels.down)]
    if by_channel:
        return [*ends, np.full(len(channels), -1, np.int64)]
    indexes = np.array([subtask.index for subtask in plan.subtasks], np.int64)
    return [*ends, indexes[plan.channels.subtask_of_lines(ledger.lines)]]


def described(plan: Plan, ledger: Ledger, *, by_channel: bool = False, subtasks: bool = True) -> dict[str, Any]:
    """What a proof says of a ledger: how many lines, its digest, and totals per exchange and subtask.

    ``subtasks``: the new ones; of the source's ledger the old ones. A subtask is (index, records, bytes, fingerprint).
    """
    keys = key_columns(plan, ledger, by_channel=by_channel)
    index = keys[2] if by_channel else keys[3]
    return {
        "lines": len(ledger.lines),
        "digest": digest(keys, ledger),
        "exchanges": [
            {
                "name": exchange.name,
                **_total(ledger.sums[keys[0] == number]),
                **({"subtasks": _by_subtask(ledger, keys[0] == number, index)} if subtasks else {}),
            }
            for number, exchange in enumerate(plan.exchanges)
        ],
    }


def _total(sums: Words) -> dict[str, Any]:
    first, second, _, records, size = (int(each) for each in sums.sum(axis=0))
    return {"records": records, "bytes": size, "fingerprint": f"{first:016x}{second:016x}"}


def _by_subtask(ledger: Ledger, mine: npt.NDArray[np.bool_], index: Longs) -> list[list[Any]]:
    unique, group = np.unique(index[mine], return_inverse=True)
    sums = np.zeros((len(unique), ledger.sums.shape[1]), np.uint64)
    np.add.at(sums, group, ledger.sums[mine])
    rows = zip(unique.tolist(), sums.tolist(), strict=True)
    return [[at, records, size, f"{first:016x}{second:016x}"] for at, (first, second, _, records, size) in rows]


def ledger_table(plan: Plan, source: Ledger, published: Ledger) -> Iterator[pa.RecordBatch]:
    """The lines of the source's and the published ledger, block after block."""
    for name, ledger, by_channel in (("read", source, True), ("commit", published, False)):
        keys = key_columns(plan, ledger, by_channel=by_channel)
        names = pa.array([exchange.name for exchange in plan.exchanges], pa.string())
        for begin in range(0, len(ledger.lines), BLOCK_LINES):
            rows = slice(begin, begin + BLOCK_LINES)
            count = len(ledger.lines[rows])
            columns = [
                pa.array(np.repeat(name, count)),
                names.take(pa.array(keys[0][rows])),
                pa.array(keys[1][rows]),
                pa.array(keys[2][rows]),
                pa.array(keys[3][rows], mask=keys[3][rows] < 0),
                *(pa.array(ledger.sums[rows, place]) for place in (RECORDS, BYTES, FIRST, SECOND, ORDER)),
            ]
            yield pa.RecordBatch.from_arrays(
                [column.cast(field.type) for column, field in zip(columns, LEDGER_SCHEMA, strict=True)],
                schema=LEDGER_SCHEMA,
            )


LEDGER_SCHEMA = pa.schema(
    [
        pa.field("ledger", pa.string(), nullable=False),
        pa.field("exchange", pa.string(), nullable=False),
        pa.field("up", pa.int32(), nullable=False),
        pa.field("down", pa.int32(), nullable=False),
        pa.field("new_down", pa.int32()),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("first", pa.uint64(), nullable=False),
        pa.field("second", pa.uint64(), nullable=False),
        pa.field("chain", pa.uint64(), nullable=False),
    ]
)
"""The file beside a receipt: a row per line, of the ledger of `read` (a virtual channel) and of `commit` (a virtual
channel and the new subtask that owns the records); both words of the fingerprint, and the order chain.
"""


def write_ledger(uri: str, scratch: Path, plan: Plan, source: Ledger, published: Ledger) -> dict[str, Any]:
    """Create the file; what the receipt says of it. A file with the same bytes counts: a database that lost its last
    transactions gives an epoch, and so this name, out again.
    """
    storage, size, sha256 = storage_for(uri), -1, hashlib.sha256()
    try:
        with making(uri, scratch) as temporary:
            with pq.ParquetWriter(temporary, LEDGER_SCHEMA, compression="zstd", compression_level=1) as writer:
                for batch in ledger_table(plan, source, published):
                    writer.write_batch(batch)
            with temporary.open("rb") as file:
                for piece in iter(lambda: file.read(PIECE), b""):
                    sha256.update(piece)
            size = temporary.stat().st_size
    except StorageError:
        if size < 0 or not storage.exists(uri) or hashlib.sha256(storage.read(uri)).digest() != sha256.digest():
            raise
    return {"uri": uri, "bytes": size, "sha256": sha256.hexdigest()}


def recorded(plan: Plan, ledger: Ledger, *, by_channel: bool = True) -> dict[str, Any]:
    """What the result of a phase says of its ledger."""
    return {"lines": len(ledger.lines), "digest": digest(key_columns(plan, ledger, by_channel=by_channel), ledger)}


def summed_lines(plan: Plan, ledger: Ledger, *, by_channel: bool = True) -> list[dict[str, Any]]:
    """The rows of a ledger in the database: sums by exchange, old and new subtask."""
    exchange, _, down, new_down = key_columns(plan, ledger, by_channel=by_channel)
    pairs = np.stack((exchange, down, new_down))
    if len(np.unique(pairs, axis=1).T) > MOST_PAIRS:
        pairs[1] = -1
    unique, group = np.unique(pairs, axis=1, return_inverse=True)
    sums = np.zeros((unique.shape[1], 3), np.int64)
    np.add.at(sums, group, np.stack((np.ones(len(group), np.int64), *_sizes(ledger)), axis=1))
    places = group[np.searchsorted(ledger.lines, ledger.other_lines)]
    kinds = np.zeros((unique.shape[1], len(KIND_NAMES) + 2), np.int64)
    np.add.at(kinds, (places, ledger.other_kinds), ledger.other_counts)
    return [
        {
            "exchange": plan.exchanges[of].name,
            "down": old,
            "new_down": None if new < 0 else new,
            "lines": lines,
            "records": records,
            "bytes": size,
            "others": {KIND_NAMES[kind]: int(kinds[row, kind]) for kind in np.flatnonzero(kinds[row]).tolist()},
        }
        for row, ((of, old, new), (lines, records, size)) in enumerate(
            zip(unique.T.tolist(), sums.tolist(), strict=True)
        )
    ]


def _sizes(ledger: Ledger) -> tuple[Longs, Longs]:
    return ledger.sums[:, RECORDS].astype(np.int64), ledger.sums[:, BYTES].astype(np.int64)
