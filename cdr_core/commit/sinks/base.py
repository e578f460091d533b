"""What the commit protocol asks of a target."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from cdr_core.commit.committable import PreparedFile
from cdr_core.errors import Refused

COMMIT_USER = "cdr.commit-user"
COMMIT_ID = "cdr.commit-id"


@dataclass(frozen=True, slots=True)
class Publication:
    """Files to make visible in one step, and the properties that identify it for ever."""

    files: tuple[PreparedFile, ...]
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Published:
    """Where a publication became visible."""

    commit_id: int
    location: str


@dataclass(frozen=True, slots=True)
class LookUp:
    """What the target showed: its newest state, to be used as the base, and what this commit user has published."""

    base: int
    published: tuple[Published, ...]

    def find(self, commit_id: int) -> Published | None:
        return next((entry for entry in self.published if entry.commit_id == commit_id), None)


class TableWriter(Protocol):
    """Writes rows to one file that nobody can see; ``prepared`` is known after a clean exit."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    @property
    def prepared(self) -> PreparedFile | None: ...


class Sink(Protocol):
    """A target. Publishing is a compare-and-swap on the base that the look-up saw."""

    def refuse_early(self) -> None:
        """Raise what would make a later publication fail, before any work is done."""

    def writer(self, name: str, schema: pa.Schema) -> AbstractContextManager[TableWriter]:
        """A writer on an executor; ``name`` is unique to the attempt of the task that calls."""

    def look_up(self, commit_user: str) -> LookUp:
        """The current base and everything this user published."""

    def publish(self, base: int, publication: Publication) -> Published:
        """Make it visible as the successor of ``base``.

        ``CommitConflict``: somebody else was first, nothing of ours is visible. ``CommitUnknown``: only a look-up can
        tell.
        """

    def open_file(self, file: PreparedFile) -> pa.NativeFile:
        """A prepared file for reading; missing or of another size is an error naming it."""


def sink_for(target: str) -> Sink:
    """The sink of a target such as ``parquet:DIR``."""
    kind, colon, address = target.partition(":")
    if not colon or not address:
        raise Refused(f"target {target!r} names no place", hint="write parquet:DIR")
    if kind == "parquet":
        from cdr_core.commit.sinks.parquet import ParquetSink

        return ParquetSink(address)
    raise Refused(f"target {target!r}: there is no sink {kind!r}", hint="use parquet:DIR")
