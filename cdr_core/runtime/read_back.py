"""A prepared file of rows, read back: the ledger of what is in it, and its digest, from its own bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdr_core.audit.ledger import RECORDS, Ledger, join_ledgers
from cdr_core.audit.row_digest import RowDigest
from cdr_core.channels.element_columns import RAW
from cdr_core.channels.table_shapes import FINGERPRINT, LENGTH, TableShape
from cdr_core.commit.committable import PreparedFile
from cdr_core.commit.sinks import Sink
from cdr_core.errors import Unbalanced
from cdr_core.kernels import fingerprint
from cdr_core.kernels.fingerprint import FINGERPRINT_BYTES
from cdr_core.planning.plan import Plan

Longs = npt.NDArray[np.int64]

CHANNEL = ("exchange", "up", "down", "new_down")
"""Columns that say of which line a row is."""


def read_back(plan: Plan, sink: Sink, file: PreparedFile, size: int, shape: TableShape) -> Ledger:
    """The ledger of a file, of which about ``size`` bytes are looked at at once. Raise if its rows are not those that
    the writer was given. Rows that do not say what bytes they came from are only counted.
    """
    digest = RowDigest()
    ledgers = []
    with sink.open_file(file) as source:
        for batch in _batches(pq.ParquetFile(source), size):
            digest.add(batch)
            ledgers.append(_tally(plan, batch, shape, file.path))
    if file.rows_digest not in (None, digest.hex):
        raise Unbalanced(
            f"commit does not balance: the rows of {file.path} are not those that were written to it",
            hint="nothing was published; recover to another target",
        )
    return join_ledgers(ledgers)


def _batches(file: pq.ParquetFile, size: int) -> Iterator[pa.RecordBatch]:
    """About ``size`` bytes each, row group by row group: an iterator over all of them would hold every byte it has
    read until it ends.
    """
    for group in range(file.num_row_groups):
        there = file.metadata.row_group(group)
        rows = max(1, size * there.num_rows // max(there.total_byte_size, 1))
        yield from file.iter_batches(rows, row_groups=[group])


def _tally(plan: Plan, batch: pa.RecordBatch, shape: TableShape, path: str) -> Ledger:
    lines, lanes = np.unique(_lines(plan, batch), return_inverse=True)
    sums = np.zeros((len(lines), fingerprint.FOLD_COLUMNS), np.uint64)
    if shape.has_fingerprint:
        _require_alike(batch, path)
        lengths = batch.column(LENGTH).to_numpy().astype(np.int64)
        fingerprint.fold_fingerprints(_fingerprints(batch), lengths, lanes.astype(np.int64), sums)
    elif shape.has_raw:
        offsets, data = _buffers(batch.column(RAW))
        fingerprint.fold_records(data, offsets[:-1], offsets[1:], lanes.astype(np.int64), sums)
    else:
        sums[:, RECORDS] = np.bincount(lanes, minlength=len(lines))
    return Ledger.of(lines, sums)


def _lines(plan: Plan, batch: pa.RecordBatch) -> Longs:
    """The line of each row; a row of a channel or subtask that the plan does not have is an error."""
    names = pa.array([exchange.name for exchange in plan.exchanges], pa.string())
    numbers = pc.fill_null(pc.index_in(batch.column("exchange"), names), -1).to_numpy(zero_copy_only=False)
    up, down, new_down = (batch.column(name).to_numpy(zero_copy_only=False).astype(np.int64) for name in CHANNEL[1:])
    channels = plan.channels.find(numbers.astype(np.int64), up, down)
    first = {subtask.operator: number for number, subtask in enumerate(plan.subtasks) if subtask.index == 0}
    firsts = np.array([first[exchange.downstream] for exchange in plan.exchanges], np.int64)
    lanes = firsts[np.maximum(numbers, 0)] + new_down - plan.channels.owner_first[channels]
    wrong = np.flatnonzero((channels < 0) | (lanes < 0) | (lanes >= plan.channels.owner_count[channels]))
    if len(wrong):
        row = int(wrong[0])
        names_of = ", ".join(f"{name} {batch.column(name)[row].as_py()}" for name in CHANNEL)
        raise Unbalanced(f"commit does not balance: a row of {names_of}, which the plan does not have")
    found: Longs = plan.channels.line_first[channels] + lanes
    return found


def _require_alike(batch: pa.RecordBatch, path: str) -> None:
    """Where rows hold their records' bytes, these have the fingerprint and the length that the rows say."""
    rows = batch.select([RAW, FINGERPRINT, LENGTH]).filter(batch.column(RAW).is_valid())
    if not rows.num_rows:
        return
    offsets, data = _buffers(rows.column(RAW))
    wrong = np.flatnonzero(np.diff(offsets) != rows.column(LENGTH).to_numpy())
    row = int(wrong[0]) if len(wrong) else fingerprint.first_other(data, offsets, _fingerprints(rows))
    if row >= 0:
        raise Unbalanced(f"commit does not balance: {path} has a row whose raw bytes have another fingerprint")


def _fingerprints(batch: pa.RecordBatch) -> npt.NDArray[np.uint8]:
    """One behind another. A format without bytes of a fixed number keeps them as bytes of any."""
    column = batch.column(FINGERPRINT).cast(pa.binary(FINGERPRINT_BYTES))
    data = np.frombuffer(column.buffers()[1], np.uint8)
    return data[FINGERPRINT_BYTES * column.offset :][: FINGERPRINT_BYTES * len(column)]


def _buffers(raw: pa.BinaryArray) -> tuple[Longs, npt.NDArray[np.uint8]]:
    _, offsets, data = raw.buffers()
    first, count = raw.offset, len(raw) + 1
    numbers = np.frombuffer(offsets, dtype=np.int32)[first : first + count].astype(np.int64)
    return numbers, np.frombuffer(data, dtype=np.uint8) if data is not None else np.zeros(0, np.uint8)
