"""A digest per record, by another function than the pipeline's fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from cdr_core.verify.types import as_stored

Longs = npt.NDArray[np.int64]
Digests = npt.NDArray[np.uint64]
Identity = tuple[bytes, int] | None
"""Fingerprint and length of a record's bytes; ``None`` in a table without them."""

SIZE = 16


class Compared(Enum):
    """Basis on which the rows of an exchange are compared with the source."""

    BYTES = "raw bytes"
    FINGERPRINTS = "fingerprint, length and values"
    VALUES = "values"


def digest(raw: bytes) -> bytes:
    """Return the digest of a record's raw bytes."""
    return hashlib.blake2b(raw, digest_size=SIZE).digest()


def value_digest(identity: Identity, ts: int | None, row_kind: str | None, fields: Iterable[Any]) -> bytes:
    """Return the digest of a row without raw bytes, from the columns that describe its record."""
    text = repr((identity, ts, row_kind, [as_stored(value) for value in fields]))
    return digest(text.encode("utf-8", "replace"))


def as_array(digests: Iterable[bytes]) -> Digests:
    """Return the digests as an array of two words each."""
    return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 2)


def total(digests: Digests) -> int:
    """Return the order-free digest of many: their sum modulo 2^128, by halves of words so that nothing overflows."""
    halves = np.ascontiguousarray(digests).view("<u4").reshape(-1, 4).sum(axis=0, dtype=np.uint64)
    return sum(int(half) << (32 * place) for place, half in enumerate(halves)) % (1 << 128)
