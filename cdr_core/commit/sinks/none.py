"""``none:``: goes all the way and keeps nothing. For drills: what is proven is that the checkpoint can be recovered.

Every value is decoded, as for a table. ``none:raw`` takes the bytes alone: every record is still counted and
fingerprinted, so the ledger balances, but its value was never decoded.

Nothing is published, so a look-up finds nothing and a publication after a crash simply happens again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from cdr_core.commit.committable import PreparedFile
from cdr_core.commit.sinks.base import LookUp, Publication, Published
from cdr_core.errors import Refused, Unreadable
from cdr_core.faults import reach

_BASE = "nothing"

RAW = "raw"
"""The address of the one that does not decode."""


class CountingWriter:
    """See :class:`cdr_core.commit.sinks.base.TableWriter`."""

    def __init__(self, name: str) -> None:
        self._name, self._records = name, 0

    def write(self, batch: pa.RecordBatch) -> None:
        self.count(batch.num_rows)

    def count(self, records: int) -> None:
        """Records that came without rows."""
        self._records += records

    @property
    def prepared(self) -> PreparedFile:
        return PreparedFile(self._name, self._records, 0, 0)


class NoneSink:
    """See :class:`cdr_core.commit.sinks.base.Sink`."""

    stores = False

    def __init__(self, address: str = "") -> None:
        if address not in ("", RAW):
            raise Refused(f"target none:{address} names a place", hint=f"write none:, or none:{RAW}")
        self.raw = address == RAW

    def refuse_early(self, schema: pa.Schema | None = None) -> None:
        """There is nothing that could fail."""

    def columns(self) -> None:
        """There is no table."""

    def create(self, schema: pa.Schema) -> None:
        """There is no table."""

    @contextmanager
    def writer(self, name: str, schema: pa.Schema, row_group: int = 0) -> Iterator[CountingWriter]:
        yield CountingWriter(name)

    def look_up(self, commit_user: str) -> LookUp:
        return LookUp(_BASE, (), frozenset({_BASE}))

    def publish(self, base: str, publication: Publication) -> Published:
        publication.permit()
        reach("publish.before")
        reach("publish.after")
        return Published(publication.commit_id, "none:")

    def open_file(self, file: PreparedFile) -> pa.NativeFile:
        raise Unreadable(f"{file.path} was written to none: and cannot be read")
