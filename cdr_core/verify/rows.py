"""Rows of an output table: each checked by itself, and collected per virtual channel for the comparison."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdr_core.errors import CorruptChannelState, Unreadable
from cdr_core.verify.checkpoint import Channel
from cdr_core.verify.digests import Compared, Digests, Identity, Longs, as_array, digest, total, value_digest
from cdr_core.verify.fingerprints import fingerprints
from cdr_core.verify.framing import timestamp, value_of
from cdr_core.verify.keys import KeyGroup, key_group_of
from cdr_core.verify.report import Difference, Kind, Totals, of_records
from cdr_core.verify.row_digests import RowDigest
from cdr_core.verify.spec import Exchange
from cdr_core.verify.types import RecordType, as_stored, parse_type

PLACE = ("exchange", "gate", "up", "down", "pos", "new_up", "new_down")
BATCH_ROWS = 4096
_FOREIGN = "it was not written by cdr"
_DAMAGE = (pa.ArrowException, OSError, ValueError, OverflowError)
"""Errors that Arrow and Python raise for damaged bytes."""


class Stated(NamedTuple):
    """Columns of a row that describe its record, beside the contents."""

    gate: int
    ts: int | None
    row_kind: str | None
    key_group: int | None
    fingerprint: bytes | None
    length: int | None

    @property
    def identity(self) -> Identity:
        """Return fingerprint and length; ``None`` in a table without them. A null in one of them matches no record."""
        return None if self.fingerprint is None and self.length is None else (self.fingerprint or b"", self.length or 0)


STATED = Stated._fields


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
    """Return the reading of an exchange whose downstream operator has this max parallelism."""
    record = parse_type(exchange.record)
    keyed = exchange.partitioner == "hash"
    return Reading(exchange, record, key_group_of(record, exchange.key, max_parallelism) if keyed else None)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows of an exchange in the order of the output: columns of equal length.

    ``groups`` are key groups computed from the raw bytes (those that the rows state, where they have no raw bytes), −1
    where they are not known; ``files`` is the number of the file; ``sizes`` and ``words`` (the fingerprint) are of the
    raw bytes, else as the rows state them, zero where they state nothing.
    """

    up: Longs
    down: Longs
    positions: Longs
    new_up: Longs
    new_down: Longs
    groups: Longs
    files: Longs
    sizes: Longs
    digests: Digests
    words: Digests

    @property
    def totals(self) -> Totals:
        return Totals(len(self.positions), int(self.sizes.sum()), total(self.digests))

    def at(self, rows: Any) -> Rows:
        return Rows(*(getattr(self, each.name)[rows] for each in fields(self)))


_0 = np.zeros(0, np.int64)
NO_ROWS = Rows(_0, _0, _0, _0, _0, _0, _0, _0, as_array([]), as_array([]))


class ReadFile(NamedTuple):
    """A file that was read: how many rows it has, their digest (``None`` if contents are damaged), and the error of the
    damage (empty = none).
    """

    records: int
    rows_digest: str | None
    broken: str = ""


class RowReader:
    """Collects the rows of a table's files."""

    def __init__(self, readings: Mapping[str, Reading]) -> None:
        self._readings = readings
        self._parts: dict[str, list[Rows]] = {name: [NO_ROWS] for name in readings}
        self._wrong: dict[tuple[Channel, str], list[int]] = defaultdict(list)
        self._shape: tuple[bool, bool] | None = None
        self._with_raw: set[str] = set()

    def compared(self, exchange: str) -> Compared:
        """Return the basis on which an exchange is compared: raw bytes, if any of its rows has them."""
        raw, fingerprint = self._shape or (True, False)
        if raw and (not fingerprint or exchange in self._with_raw):
            return Compared.BYTES
        return Compared.FINGERPRINTS if fingerprint else Compared.VALUES

    def add_file(self, number: int, source: Any, name: str) -> ReadFile:
        """Read all rows of a Parquet file.

        Rows whose contents are damaged but whose place columns can be read count as changed. A file whose place columns
        cannot be read is ``Unreadable``.
        """
        done, rows = 0, RowDigest()
        try:
            file = pq.ParquetFile(source)
            self._require(file.schema_arrow, name)
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                _require_places(batch, name)
                self._add_batch(number, batch)
                rows.add(batch)
                done += batch.num_rows
            return ReadFile(done, rows.hex())
        except _DAMAGE as error:
            broken = (str(error).splitlines() or [type(error).__name__])[0]
        try:
            return ReadFile(self._add_places(number, source, name, done), None, broken)
        except _DAMAGE:
            raise Unreadable(f"{name} cannot be read as Parquet: {broken}", hint="it was damaged") from None

    def _add_places(self, number: int, source: Any, name: str, done: int) -> int:
        """Add the rows behind the first ``done`` without their contents; return how many there are in all."""
        seen = 0
        source.seek(0)
        for batch in pq.ParquetFile(source).iter_batches(batch_size=BATCH_ROWS, columns=list(PLACE)):
            _require_places(batch, name)
            rest = batch.slice(min(max(done - seen, 0), batch.num_rows))
            for exchange, places in _by_exchange(rest):
                count = places.num_rows
                self._add(number, exchange, places, [digest(b"")] * count, [-1] * count, [None] * count)
            seen += batch.num_rows
        return seen

    def rows(self) -> dict[str, Rows]:
        """Return all rows by exchange, also of exchanges that the spec lacks; the reader drops its
        references to them.
        """
        found, self._parts = self._parts, {}
        return {
            name: Rows(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(Rows)))
            for name, parts in found.items()
        }

    @property
    def differences(self) -> Iterator[Difference]:
        """Yield rows that contradict themselves."""
        for (channel, what), positions in sorted(self._wrong.items(), key=lambda item: str(item[0])):
            yield from of_records(Kind.CHANGED, channel, positions, what)

    def _require(self, schema: pa.Schema, name: str) -> None:
        for place in PLACE:
            kind = schema.field(place).type if place in schema.names else None
            fits = pa.types.is_integer if place != "exchange" else _is_text
            if kind is None or not fits(kind):
                raise Unreadable(f"{name} has no column {place} of the right type", hint=_FOREIGN)
        shape = "raw" in schema.names, "fingerprint" in schema.names
        if self._shape not in (None, shape):
            what = "differs from the files before it in having raw bytes or fingerprints"
            raise Unreadable(f"{name} {what}", hint="verify them apart")
        self._shape = shape

    def _add_batch(self, number: int, batch: pa.RecordBatch) -> None:
        for name, rows in _by_exchange(batch):
            raws = rows.column("raw").to_pylist() if "raw" in rows.schema.names else [None] * rows.num_rows
            reading = self._readings.get(name)
            if reading is None:
                checked = [(digest(raw or b""), -1, "is of an exchange that the spec does not have") for raw in raws]
            else:
                checked = self._check_rows(reading, rows, raws)
            digests, groups, problems = zip(*checked, strict=True)
            if any(raw is not None for raw in raws):
                self._with_raw.add(name)
            self._add(number, name, rows, digests, groups, raws)
            for at in (i for i, problem in enumerate(problems) if problem):
                up, down, position = (rows.column(column)[at].as_py() for column in ("up", "down", "pos"))
                self._wrong[Channel(name, up, down), problems[at]].append(position)

    def _add(
        self,
        number: int,
        exchange: str,
        rows: pa.RecordBatch,
        digests: Iterable[bytes],
        groups: Sequence[int],
        raws: Sequence[bytes | None],
    ) -> None:
        up, down, positions, new_up, new_down = (_longs(rows.column(name)) for name in PLACE[2:])
        files, of_groups = np.full(rows.num_rows, number, np.int64), np.array(groups, np.int64)
        sizes = np.array([len(raw or b"") for raw in raws], np.int64)
        ends = np.cumsum(sizes)
        words = fingerprints(b"".join(raw or b"" for raw in raws), ends - sizes, ends)
        missing = np.array([raw is None for raw in raws], bool)
        words[missing] = 0
        if "fingerprint" in rows.schema.names and missing.any():
            stated = [each or bytes(16) for each in rows.column("fingerprint").to_pylist()]
            words[missing] = np.frombuffer(b"".join(stated), ">u8").reshape(-1, 2)[missing]
            sizes[missing] = _longs(rows.column("length"))[missing]
        found = Rows(up, down, positions, new_up, new_down, of_groups, files, sizes, as_array(digests), words)
        self._parts.setdefault(exchange, [NO_ROWS]).append(found)

    def _check_rows(
        self, reading: Reading, rows: pa.RecordBatch, raws: Sequence[bytes | None]
    ) -> list[tuple[bytes, int, str]]:
        """Return digest, key group and what is wrong by itself (empty = nothing) of each row of an exchange."""
        names, count = rows.schema.names, rows.num_rows
        stated = [rows.column(name).to_pylist() if name in names else [None] * count for name in STATED]
        name = reading.exchange.name
        stored = rows.column(name).to_pylist() if name in names else [None] * count
        strange = np.zeros(count, bool)
        for other in self._readings.keys() & {*names} - {name}:
            strange |= rows.column(other).is_valid().to_numpy(zero_copy_only=False)
        found = []
        for row, raw, values in zip(map(Stated, *stated), raws, stored, strict=True):
            found.append(self._check(reading, row, raw, values, name in names))
        if "fingerprint" in names and any(raw is not None for raw in raws):
            for at, (row, identity) in enumerate(zip(map(Stated, *stated), _identities(raws), strict=True)):
                if identity not in (None, row.identity):
                    found[at] = (*found[at][:2], "has a fingerprint or a length that is not its raw bytes'")
        for at in np.flatnonzero(strange).tolist():
            found[at] = (*found[at][:2], found[at][2] or "has values of another exchange")
        return found

    def _check(
        self, reading: Reading, row: Stated, raw: bytes | None, stored: Any, has_values: bool
    ) -> tuple[bytes, int, str]:
        """Return digest, key group and what is wrong with a row by itself (empty = nothing)."""
        if row.gate != reading.exchange.gate:
            return digest(raw or b""), -1, f"has gate {row.gate} instead of {reading.exchange.gate}"
        if raw is None:
            return _digest_of_values(reading, row, stored), -1 if row.key_group is None else row.key_group, ""
        if not raw or raw[0] > 1:
            return digest(raw), -1, "is no record"
        try:
            fields, row_kind = reading.record.read(value_of(raw))
        except CorruptChannelState:
            return digest(raw), -1, "has raw bytes that are not of its type"
        group = -1 if reading.group is None else reading.group(fields)
        problem = _stated(reading, row, raw, group, row_kind)
        if not problem and has_values and (stored is None or not _same_fields(fields, stored)):
            problem = "has values that are not those of its raw bytes"
        return digest(raw), group, problem


def _digest_of_values(reading: Reading, row: Stated, stored: Any) -> bytes:
    fields = stored or {}
    return value_digest(row.identity, row.ts, row.row_kind, (fields.get(f.name) for f in reading.record.readable))


def _stated(reading: Reading, row: Stated, raw: bytes, group: int, row_kind: str | None) -> str:
    """Return how the columns beside the raw bytes contradict them; empty if they do not."""
    if row.ts != timestamp(raw):
        return "has another timestamp than its raw bytes"
    if row.row_kind != row_kind:
        return "has another row kind than its raw bytes"
    if not reading.keyed and row.key_group is not None:
        return "has a key group although its exchange has none"
    if reading.group is not None and row.key_group != group:
        return "has a key group that is not its key's"
    return ""


def _identities(raws: Sequence[bytes | None]) -> list[Identity]:
    """Return fingerprint and length of the raw bytes."""
    ends = np.cumsum([len(raw or b"") for raw in raws], dtype=np.int64)
    words = fingerprints(b"".join(raw or b"" for raw in raws), np.append(0, ends[:-1]), ends).astype(">u8")
    return [None if raw is None else (word.tobytes(), len(raw)) for raw, word in zip(raws, words, strict=True)]


def _same_fields(fields: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    return all(_same(as_stored(value), stored.get(name)) for name, value in fields.items())


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return repr(left) == repr(right)
    return type(left) is type(right) and bool(left == right)


def _by_exchange(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each exchange, in their order."""
    column = batch.column("exchange")
    names = pc.unique(column.cast(pa.string())).to_pylist()
    for name in names:
        rows = batch if len(names) == 1 else batch.filter(pc.equal(column.cast(pa.string()), name))
        yield str(name), rows


def _longs(column: pa.Array) -> Longs:
    found: Longs = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def _require_places(batch: pa.RecordBatch, name: str) -> None:
    if any(batch.column(place).null_count for place in PLACE):
        raise Unreadable(f"{name} has a row without its place columns", hint=_FOREIGN)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind))
