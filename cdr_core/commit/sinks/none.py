"""``none:``: goes all the way and keeps nothing. For drills: what is proven is that the checkpoint can be recovered.

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


class CountingWriter:
    """See :class:`cdr_core.commit.sinks.base.TableWriter`."""

    def __init__(self, name: str) -> None:
        self._name, self._records = name, 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._records += batch.num_rows

    @property
    def prepared(self) -> PreparedFile:
        return PreparedFile(self._name, self._records, 0, 0)


class NoneSink:
    """See :class:`cdr_core.commit.sinks.base.Sink`."""

    stores = False

    def __init__(self, address: str = "") -> None:
        if address:
            raise Refused(f"target none:{address} names a place", hint="write none:")

    def refuse_early(self, schema: pa.Schema | None = None) -> None:
        """There is nothing that could fail."""

    def create(self, schema: pa.Schema) -> None:
        """There is no table."""

    @contextmanager
    def writer(self, name: str, schema: pa.Schema) -> Iterator[CountingWriter]:
        yield CountingWriter(name)

    def look_up(self, commit_user: str) -> LookUp:
        return LookUp(_BASE, (), frozenset({_BASE}))

    def publish(self, base: str, publication: Publication) -> Published:
        reach("publish.before")
        reach("publish.after")
        return Published(publication.commit_id, "none:")

    def open_file(self, file: PreparedFile) -> pa.NativeFile:
        raise Unreadable(f"{file.path} was written to none: and cannot be read")
