"""The file beside a receipt that has the lines of its ledgers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdr_core.errors import CdrError, Unreadable
from cdr_core.storage import join, storage_for
from cdr_core.verify.claims import Claims
from cdr_core.verify.report import Difference, Kind

LedgerBlock = tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]
"""Some lines: their keys (exchange, up, down, new subtask) and sums (records, bytes, two words, chain)."""

KEYS = ("up", "down", "new_down")
SUMS = ("records", "bytes", "first", "second", "chain")
_DAMAGE = (pa.ArrowException, OSError, ValueError, OverflowError, KeyError)
_HINT = "take the ledger file from the recovery's workspace, or verify without the receipt"


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """An open file; ``differences`` tell how it differs from the file that the receipt was written with."""

    uri: str
    parquet: pq.ParquetFile
    phases: tuple[str, ...]
    differences: tuple[Difference, ...]

    def blocks(self, phase: str, names: Sequence[str]) -> Iterator[LedgerBlock]:
        """Yield the lines of one ledger by row group; an exchange that is not among the names has number −1."""
        known = pa.array(names, pa.string())
        for group in range(self.parquet.num_row_groups):
            try:
                rows = self.parquet.read_row_group(group)
                if rows.num_rows != self.parquet.metadata.row_group(group).num_rows:
                    raise ValueError("a row group has lost rows")
                if pc.any(pc.invert(pc.is_in(rows["ledger"], pa.array(self.phases)))).as_py():
                    raise ValueError("it has lines of a ledger that receipts do not have")
                block = _block(rows.filter(pc.equal(rows["ledger"], phase)), known)
            except _DAMAGE as error:
                raise _unreadable(self.uri, error) from None
            if len(block[0]):
                yield block


def _block(rows: pa.Table, names: pa.Array) -> LedgerBlock:
    exchange = pc.fill_null(pc.index_in(rows["exchange"], names), -1)
    keys = [exchange, *(rows[name] for name in KEYS[:2]), pc.fill_null(rows[KEYS[2]], -1)]
    if any(rows[name].null_count for name in rows.schema.names if name != KEYS[2]):
        raise ValueError("a line lacks a value")
    return (
        np.stack([key.cast(pa.int64()).to_numpy() for key in keys], axis=1),
        np.stack([rows[name].cast(pa.uint64()).to_numpy() for name in SUMS], axis=1),
    )


def open_ledger(claims: Claims, phases: tuple[str, ...]) -> LedgerFile:
    """Open the ledger file of a receipt at the address that the receipt states, else beside the receipt.

    A file that is missing or cannot be read is ``Unreadable``: without it the receipt's lines are not verified.
    """
    uri = _find(str(claims.receipt["ledger"]["uri"]), claims.beside)
    data = storage_for(uri).read(uri)
    differences = tuple(_check_sum(uri, data, claims))
    try:
        parquet = pq.ParquetFile(pa.BufferReader(data))
        missing = {"ledger", "exchange", *KEYS, *SUMS} - {*parquet.schema_arrow.names}
        if missing:
            raise ValueError(f"it has no column {min(missing)}")
    except _DAMAGE as error:
        raise _unreadable(uri, error) from None
    return LedgerFile(uri, parquet, phases, differences)


def check_copy(uri: str, claims: Claims) -> Iterator[Difference]:
    """Compare the file at this address, if there is one, with the ledger file that the receipt was written with."""
    storage = storage_for(uri)
    if claims.version > 1 and storage.exists(uri):
        yield from _check_sum(uri, storage.read(uri), claims)


def _check_sum(uri: str, data: bytes, claims: Claims) -> Iterator[Difference]:
    stated = claims.receipt["ledger"]
    if (len(data), hashlib.sha256(data).hexdigest()) != (stated["bytes"], stated["sha256"]):
        what = f"{uri} is not the ledger file that the receipt was written with: its size or SHA-256 is another"
        yield Difference(Kind.RECEIPT, what)


def _find(uri: str, beside: str) -> str:
    places = list(dict.fromkeys([uri, *([join(beside, uri.rpartition("/")[2])] if beside else [])]))
    for place in places:
        try:
            if storage_for(place).exists(place):
                return place
        except CdrError:  # a store that cannot be reached from here; the file may still lie beside the receipt
            continue
    raise Unreadable(f"the receipt's ledger file cannot be found: {' and '.join(places)}", hint=_HINT)


def _unreadable(uri: str, error: Exception) -> Unreadable:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return Unreadable(f"the ledger file {uri} cannot be read: {reason}", hint=_HINT)
