"""Rows of an output table: each checked in itself, and summed up per virtual channel for the comparison."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cdr_core.audit.independent.checkpoint import Channel
from cdr_core.audit.independent.digests import Digests, Longs, as_array, digest, value_digest
from cdr_core.audit.independent.framing import timestamp, value_of
from cdr_core.audit.independent.keys import KeyGroup, key_group_of
from cdr_core.audit.independent.report import Difference, Kind, of_records
from cdr_core.audit.independent.spec import Exchange
from cdr_core.audit.independent.types import RecordType, as_stored, parse_type
from cdr_core.errors import CorruptChannelState, Unreadable

PLACE = ("exchange", "gate", "up", "down", "pos", "new_up", "new_down")
BATCH_ROWS = 4096
_FOREIGN = "it was not written by cdr"
_DAMAGE = (pa.ArrowException, OSError, ValueError, OverflowError)
"""What reading damaged bytes raises: whoever decodes them, Arrow or Python, has a word of its own for it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How rows of one exchange are read: its type, and its key group where that can be computed here."""

    exchange: Exchange
    record: RecordType
    group: KeyGroup | None

    @property
    def keyed(self) -> bool:
        return self.exchange.partitioner == "hash" and bool(self.exchange.key) and self.record.kind != "OPAQUE"


def reading_of(exchange: Exchange, max_parallelism: int) -> Reading:
    """For an exchange whose downstream operator has this max parallelism."""
    record = parse_type(exchange.record)
    keyed = exchange.partitioner == "hash"
    return Reading(exchange, record, key_group_of(record, exchange.key, max_parallelism) if keyed else None)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one virtual channel in the order of the output: columns of equal length.

    ``groups`` are key groups computed from the raw bytes (those that the rows state, in a table without raw bytes), −1
    where they are not known; ``files`` is the number of the file.
    """

    positions: Longs
    new_up: Longs
    new_down: Longs
    groups: Longs
    files: Longs
    digests: Digests
    bytes: int


class _Growing:
    """Rows of a channel while they come in, packed: there may be many millions."""

    def __init__(self) -> None:
        self.places = array("q")
        self.digests = bytearray()
        self.bytes = 0

    def done(self) -> Rows:
        positions, new_up, new_down, groups, files = np.frombuffer(self.places, np.int64).reshape(-1, 5).T
        return Rows(positions, new_up, new_down, groups, files, as_array(self.digests), self.bytes)


class RowReader:
    """Takes in files of a table one after the other."""

    def __init__(self, readings: Mapping[str, Reading]) -> None:
        self._readings = readings
        self._channels: dict[Channel, _Growing] = defaultdict(_Growing)
        self._wrong: dict[tuple[Channel, str], list[int]] = defaultdict(list)
        self.raw: bool | None = None

    def add_file(self, number: int, source: Any, name: str) -> tuple[int, str]:
        """All rows of a Parquet file: their number, and why some have lost their contents (empty = none has).

        Where contents cannot be read but the columns that say where a row belongs can, rows count as changed. A file
        of which not even that can be read is ``Unreadable``.
        """
        done = 0
        try:
            file = pq.ParquetFile(source)
            self._require(file.schema_arrow, name)
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                _require_places(batch, name)
                self._add_batch(number, batch)
                done += batch.num_rows
            return done, ""
        except _DAMAGE as error:
            broken = (str(error).splitlines() or [type(error).__name__])[0]
        try:
            return self._add_places(number, source, name, done), broken
        except _DAMAGE:
            raise Unreadable(f"{name} cannot be read as Parquet: {broken}", hint="it was damaged") from None

    def _add_places(self, number: int, source: Any, name: str, done: int) -> int:
        """The rows behind the first ``done``, without their contents; how many there are in all."""
        seen = 0
        source.seek(0)
        for batch in pq.ParquetFile(source).iter_batches(batch_size=BATCH_ROWS, columns=list(PLACE)):
            _require_places(batch, name)
            rest = batch.slice(min(max(done - seen, 0), batch.num_rows))
            for row in rest.to_pylist():
                self._add(number, row, digest(b""), -1, 0)
            seen += batch.num_rows
        return seen

    @property
    def channels(self) -> dict[Channel, Rows]:
        return {channel: growing.done() for channel, growing in self._channels.items()}

    @property
    def differences(self) -> Iterator[Difference]:
        """Rows that contradict themselves."""
        for (channel, what), positions in sorted(self._wrong.items(), key=lambda item: str(item[0])):
            yield from of_records(Kind.CHANGED, channel, positions, what)

    def _require(self, schema: pa.Schema, name: str) -> None:
        for place in PLACE:
            kind = schema.field(place).type if place in schema.names else None
            fits = pa.types.is_integer if place != "exchange" else _is_text
            if kind is None or not fits(kind):
                raise Unreadable(f"{name} has no column {place} of the right type", hint=_FOREIGN)
        raw = "raw" in schema.names
        if self.raw not in (None, raw):
            raise Unreadable(f"{name} differs from the files before it in having raw bytes", hint="verify them apart")
        self.raw = raw

    def _add_batch(self, number: int, batch: pa.RecordBatch) -> None:
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        values = {name: columns.pop(name, None) for name in self._readings}
        names = tuple(columns)
        for i, cells in enumerate(zip(*columns.values(), strict=True)):
            self._add_row(number, dict(zip(names, cells, strict=True)), values, i)

    def _add_row(self, number: int, row: dict[str, Any], values: Mapping[str, list[Any] | None], i: int) -> None:
        name = row["exchange"]
        channel = Channel(str(name), row["up"], row["down"])
        reading = self._readings.get(name)
        group, problem = -1, "is of an exchange that the spec does not have"
        raw = row.get("raw")
        if reading is not None:
            column = values[name]
            stored = None if column is None else column[i]
            row_digest, group, problem = self._check(reading, row, raw, stored, column is not None)
            if any(other is not None and other[i] is not None for key, other in values.items() if key != name):
                problem = problem or "has values of another exchange"
        else:
            row_digest = digest(raw or b"")
        if problem:
            self._wrong[channel, problem].append(row["pos"])
        self._add(number, row, row_digest, group, len(raw or b""))

    def _add(self, number: int, row: Mapping[str, Any], row_digest: bytes, group: int, size: int) -> None:
        growing = self._channels[Channel(str(row["exchange"]), row["up"], row["down"])]
        growing.places.extend((row["pos"], row["new_up"], row["new_down"], group, number))
        growing.digests += row_digest
        growing.bytes += size

    def _check(
        self, reading: Reading, row: Mapping[str, Any], raw: bytes | None, stored: Any, has_values: bool
    ) -> tuple[bytes, int, str]:
        """Digest, key group and what is wrong with a row in itself (empty = nothing)."""
        if row["gate"] != reading.exchange.gate:
            return digest(raw or b""), -1, f"has gate {row['gate']} instead of {reading.exchange.gate}"
        if raw is None:
            stated = row.get("key_group")
            return _digest_of_values(reading, row, stored), -1 if stated is None else stated, ""
        if not raw or raw[0] > 1:
            return digest(raw), -1, "is no record"
        try:
            fields, row_kind = reading.record.read(value_of(raw))
        except CorruptChannelState:
            return digest(raw), -1, "has raw bytes that are not of its type"
        group = -1 if reading.group is None else reading.group(fields)
        said = _stated(reading, row, raw, group, row_kind)
        if not said and has_values and (stored is None or not _same_fields(fields, stored)):
            said = "has values that are not those of its raw bytes"
        return digest(raw), group, said


def _digest_of_values(reading: Reading, row: Mapping[str, Any], stored: Any) -> bytes:
    fields = stored or {}
    return value_digest(row.get("ts"), row.get("row_kind"), (fields.get(f.name) for f in reading.record.readable))


def _stated(reading: Reading, row: Mapping[str, Any], raw: bytes, group: int, row_kind: str | None) -> str:
    """What the columns beside the raw bytes say against them; empty if nothing."""
    if row.get("ts") != timestamp(raw):
        return "has another timestamp than its raw bytes"
    if row.get("row_kind") != row_kind:
        return "has another row kind than its raw bytes"
    if not reading.keyed and row.get("key_group") is not None:
        return "has a key group although its exchange has none"
    if reading.group is not None and row.get("key_group") != group:
        return "has a key group that is not its key's"
    return ""


def _same_fields(fields: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    return all(_same(as_stored(value), stored.get(name)) for name, value in fields.items())


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return repr(left) == repr(right)
    return type(left) is type(right) and bool(left == right)


def _require_places(batch: pa.RecordBatch, name: str) -> None:
    if any(batch.column(place).null_count for place in PLACE):
        raise Unreadable(f"{name} has a row that does not say where it belongs", hint=_FOREIGN)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind))
