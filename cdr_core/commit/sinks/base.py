"""What the commit protocol asks of a target."""

from __future__ import annotations

import builtins
import hashlib
import importlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import google_crc32c
import pyarrow as pa

from cdr_core.commit.committable import PreparedFile
from cdr_core.extras import require_extra
from cdr_core.targets import Target

COMMIT_USER = "cdr.commit-user"
COMMIT_ID = "cdr.commit-id"
WATERMARK = "cdr.watermark"
RECOVERY = "cdr.recovery"
GENERATION = "cdr.generation"
"""How often the same checkpoint and target were started over before; left out for the first generation."""
PROOF = "cdr.proof-sha256"
SOURCE = "cdr.source-metadata-sha256"
"""Which checkpoint the records come from: a path may be used again, the SHA-256 of ``_metadata`` is not."""
FILES = "cdr.files-sha256"
"""SHA-256 of name, size and CRC-32C of every file, one line each, sorted. Names, because a table may move."""
SEAL = "cdr.properties-sha256"
"""SHA-256 of all other properties of ours, ``name=value``, one line each, sorted: most of them can be compared with
nothing where there is no receipt.
"""

ROW_GROUP_BYTES = 16 * 1024 * 1024
"""Rows held in memory before they become a row group; small groups make slow tables, larger ones add nothing."""

LEAST_ROW_GROUP_BYTES = 512 * 1024
"""Below this a file is more about its columns than about its rows."""

BUDGET_SHARE = 8
"""The rows of a group are there three times for a moment (as batches, encoded, compressed), and the allocator keeps
about as much again.
"""


def _permitted() -> None:
    """Default permit: always allowed."""


@dataclass(frozen=True, slots=True)
class Publication:
    """Files to make visible in one step, and the properties that identify it for ever.

    ``permit`` is the last question, asked when nothing is left to do but the step itself; it raises to forbid that.
    """

    files: tuple[PreparedFile, ...]
    properties: Mapping[str, str]
    permit: Callable[[], None] = field(default=_permitted, compare=False)

    @property
    def signed(self) -> dict[str, str]:
        """The properties of a publication of just these files: a later reader can tell if one was changed."""
        files = (f"{file.path.rpartition('/')[2]} {file.bytes} {file.crc32c}" for file in self.files)
        own = {name: value for name, value in self.properties.items() if name != SEAL} | {FILES: _sum_of(files)}
        return {**own, SEAL: _sum_of(f"{name}={value}" for name, value in own.items())}

    @property
    def commit_user(self) -> str:
        return self.properties[COMMIT_USER]

    @property
    def commit_id(self) -> int:
        return int(self.properties[COMMIT_ID])


def _sum_of(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Published:
    """Where a publication became visible; ``uuid`` tells it from another one at the same place, where there is one.

    ``proof`` is the SHA-256 of the proof that it was published with, where the target says so.
    """

    commit_id: int
    location: str
    uuid: str | None = None
    proof: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class MetadataFile:
    """A file by which a table's library knows a publication; it never changes once it is written."""

    path: str
    bytes: int
    crc32c: int

    @classmethod
    def of(cls, path: str, data: builtins.bytes) -> MetadataFile:
        return cls(path, len(data), google_crc32c.value(data))


@dataclass(frozen=True, slots=True)
class LookUp:
    """What the target showed: its newest state, to be used as the base, and what this commit user has published.

    A base is a word of the sink's own. ``known`` holds the bases of which every successor is still in sight: for any
    other one, "not found" may only mean that the target has forgotten. ``others``: which source checkpoints (SHA-256 of
    ``_metadata``) are in sight that other recoveries published, and which recoveries did.
    """

    base: str
    published: tuple[Published, ...]
    known: frozenset[str]
    others: Mapping[str, str] = field(default_factory=dict)

    def find(self, commit_id: int) -> Published | None:
        return next((entry for entry in self.published if entry.commit_id == commit_id), None)

    def covers(self, base: str) -> bool:
        """Whether everything that was published after ``base`` is in sight."""
        return base in self.known


def by_others(shown: Iterable[Mapping[str, Any]], commit_user: str) -> dict[str, str]:
    """Recoveries by the source they published, from the properties of every publication in sight."""
    return {
        str(each[SOURCE]): str(each.get(RECOVERY, "of another release"))
        for each in shown
        if SOURCE in each and each.get(COMMIT_USER) != commit_user
    }


def row_group_bytes(budget: int) -> int:
    """How large row groups are where a task may hold so many bytes."""
    return min(ROW_GROUP_BYTES, max(LEAST_ROW_GROUP_BYTES, budget // BUDGET_SHARE))


class TableWriter(Protocol):
    """Writes rows to one file that is not visible; ``prepared`` is known after a clean exit."""

    def write(self, batch: pa.RecordBatch) -> None: ...

    @property
    def prepared(self) -> PreparedFile | None: ...


class Sink(Protocol):
    """A target. Publishing is a compare-and-swap on the base that the look-up saw."""

    stores: bool
    """Whether prepared files can be read back; where not, what was drained is all there is to compare."""

    def refuse_early(self, schema: pa.Schema | None = None) -> None:
        """Raise what would make a later publication fail, before any work is done; nothing is made or changed."""

    def columns(self) -> Collection[str] | None:
        """The names of the table's columns; ``None`` where there is no table, or one that has no file yet to say."""

    def create(self, schema: pa.Schema) -> None:
        """Make the table if there is none; one with other columns is refused. Safe to repeat; only the driver calls."""

    def writer(
        self, name: str, schema: pa.Schema, row_group: int = ROW_GROUP_BYTES
    ) -> AbstractContextManager[TableWriter]:
        """A writer on an executor, which holds about ``row_group`` bytes of rows before it writes them; ``name`` is
        unique to the attempt of the task that calls.
        """

    def look_up(self, commit_user: str) -> LookUp:
        """The current base and everything this user published."""

    def publish(self, base: str, publication: Publication) -> Published:
        """Make it visible as the successor of ``base``, after a look at each file: one that is missing is an error.

        Right before the step that makes it visible, and after everything else, it asks ``publication.permit``.

        ``CommitConflict``: another process was first, nothing of ours is visible. After any other exception only a
        look-up can tell; prepared files stay whatever happens.
        """

    def open_file(self, file: PreparedFile) -> pa.NativeFile:
        """A prepared file for reading; missing, of another size or with other bytes is an error naming it."""


class Lake(Sink, Protocol):
    """A table whose library alone knows which files are in it."""

    def metadata_of(self, locations: Sequence[str]) -> Mapping[str, tuple[MetadataFile, ...]]:
        """What the library wrote for publications, by their location; nothing of those that it has forgotten."""

    def files_of(self, recovery: str) -> list[str]:
        """Every data file in the table's place that bears the recovery's name, published or not."""

    def listed(self) -> frozenset[str]:
        """The names, without directories, of all data files that any snapshot lists. What cannot be read raises."""


def lake_for(target: Target) -> Lake | None:
    """The sink of a target whose files lie in a table of a library; ``None`` for any other."""
    if not target.kind.is_lake:
        return None
    lake: Lake = _make(target)
    return lake


def sink_for(target: Target) -> Sink:
    """The sink of a target. Nothing heavy is imported for a kind that is not used."""
    sink: Sink = _make(target)
    return sink


def _make(target: Target) -> Any:
    if target.kind.extra:
        require_extra(target.kind.extra, f"a target {target.kind.name}:")
    module, _, name = target.kind.sink.partition(":")
    return getattr(importlib.import_module(module), name)(target.address)
