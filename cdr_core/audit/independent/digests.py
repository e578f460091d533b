"""A digest per record, by another function than the pipeline's fingerprint."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from cdr_core.audit.independent.framing import KINDS, Elements, timestamp, value_of
from cdr_core.audit.independent.types import RecordType, as_stored

Longs = npt.NDArray[np.int64]
Digests = npt.NDArray[np.uint64]

SIZE = 16


def digest(raw: bytes) -> bytes:
    """Of a record's raw bytes."""
    return hashlib.blake2b(raw, digest_size=SIZE).digest()


def value_digest(ts: int | None, row_kind: str | None, fields: Iterable[Any]) -> bytes:
    """Of a record's values, for tables without raw bytes."""
    return digest(repr((ts, row_kind, [as_stored(value) for value in fields])).encode("utf-8", "replace"))


def as_array(digests: Iterable[bytes] | bytearray) -> Digests:
    """Two words per digest."""
    joined = digests if isinstance(digests, bytearray) else b"".join(digests)
    return np.frombuffer(joined, dtype="<u8").reshape(-1, 2)


def total(digests: Digests) -> int:
    """The order-free digest of many: their sum modulo 2^128, by halves of words so that nothing overflows."""
    halves = np.ascontiguousarray(digests).view("<u4").reshape(-1, 4).sum(axis=0, dtype=np.uint64)
    return sum(int(half) << (32 * place) for place, half in enumerate(halves)) % (1 << 128)


@dataclass(frozen=True, slots=True)
class Expected:
    """The records of a channel of the source: their positions among all elements, ascending, and their digests.

    ``groups`` are their key groups where they had to be decoded anyway (a table without raw bytes), else ``None``;
    ``others`` counts the elements that are not records, by kind.
    """

    positions: Longs
    digests: Digests
    bytes: int
    groups: Longs | None = None
    others: Mapping[str, int] = field(default_factory=dict)


def expected_raw(elements: Elements) -> Expected:
    """By raw bytes."""
    data = elements.data
    positions, digests, size = [], [], 0
    for position, (start, end) in enumerate(zip(elements.starts, elements.ends, strict=True)):
        if data[start] <= 1:
            positions.append(position)
            digests.append(digest(data[start:end]))
            size += end - start
    return Expected(np.array(positions, np.int64), as_array(digests), size, None, _others(elements))


def expected_values(elements: Elements, record: RecordType, group: Any) -> Expected:
    """By values; ``group`` gives a key group from fields, or is ``None``."""
    positions, digests, groups, size = [], [], [], 0
    for position, (start, end) in enumerate(zip(elements.starts, elements.ends, strict=True)):
        raw = elements.data[start:end]
        if raw[0] <= 1:
            fields, row_kind = record.read(value_of(raw))
            positions.append(position)
            digests.append(value_digest(timestamp(raw), row_kind, (fields[f.name] for f in record.readable)))
            groups.append(-1 if group is None else group(fields))
            size += len(raw)
    keys = np.array(groups, np.int64)
    return Expected(np.array(positions, np.int64), as_array(digests), size, keys, _others(elements))


def _others(elements: Elements) -> dict[str, int]:
    tags = (elements.data[start] for start in elements.starts)
    return dict(Counter(KINDS[tag] for tag in tags if tag > 1))
