"""Snapshots: what each subtask of a drain has made durable, as one immutable object after another.

A task that closes an output file creates the next snapshot of its subtask. Creating is exclusive, so the snapshots of
an attempt are one chain per subtask, whichever tasks wrote them: a starting task takes the chain over by creating the
next snapshot with the same cut, and a task whose next number bears another task's name has lost the subtask and stops.
The driver reads the newest snapshot of every subtask when it takes a recovery checkpoint, and never waits for a task.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from cdr_core.audit.ledger import NOTHING, Ledger
from cdr_core.commit.committable import PreparedFile
from cdr_core.drain.watermark_state import UNKNOWN, InputWatermark
from cdr_core.errors import Corrupt, JobFailed, StorageError, Unreadable, other_version
from cdr_core.storage import join, storage_for
from cdr_core.storage.column_codec import Columns, decode_columns, encode_columns, read_file

SNAPSHOT_VERSION = 1
SUFFIX = ".msgpack"
START = "start"
"""The position of a subtask of which nothing has been drained."""

TAKEOVERS = 16
"""How often a starting task tries to take a chain over that grows meanwhile."""


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """How far a subtask is. What was delivered before the cut is in ``files``, all of them since the drain began.

    ``columns`` are those of :meth:`~cdr_core.drain.drain_state.DrainState.to_columns`; ``None`` = nothing was
    delivered. ``final`` = everything was.
    """

    position: str
    manifest: str
    files: tuple[PreparedFile, ...] = ()
    watermark: InputWatermark = UNKNOWN
    columns: Columns | None = None
    final: bool = False

    @property
    def ledger(self) -> Ledger:
        """What was delivered."""
        return NOTHING if self.columns is None else Ledger.from_columns(self.columns)

    @property
    def owned(self) -> tuple[str, ...]:
        """Files in the workspace that the output needs."""
        return tuple(file.chunks_uri for file in self.files if file.chunks_uri is not None)


class _Head(msgspec.Struct, frozen=True):
    """A snapshot without its columns, as it is stored."""

    version: int
    subtask: int
    number: int
    task: str
    after: str
    position: str
    manifest: str
    files: tuple[PreparedFile, ...]
    watermark: int | None
    idle: bool
    begun: bool
    final: bool


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A cut in the chain of its subtask: ``number`` from 1, made by ``task``, continuing the position ``after``."""

    subtask: int
    number: int
    task: str
    after: str
    cut: Cut

    def encode(self) -> bytes:
        cut = self.cut
        head = _Head(
            SNAPSHOT_VERSION,
            self.subtask,
            self.number,
            self.task,
            self.after,
            cut.position,
            cut.manifest,
            cut.files,
            cut.watermark.watermark,
            cut.watermark.idle,
            cut.columns is not None,
            cut.final,
        )
        return encode_columns(msgspec.to_builtins(head), cut.columns or {})

    @classmethod
    def decode(cls, detail: Mapping[str, Any], columns: Columns) -> Snapshot:
        if detail.get("version") != SNAPSHOT_VERSION:
            raise other_version("a snapshot of the drain", detail.get("version"), SNAPSHOT_VERSION)
        try:
            head = msgspec.convert(detail, _Head)
        except msgspec.ValidationError as error:
            raise Corrupt(f"a snapshot of the drain is damaged: {error}") from None
        cut = Cut(
            head.position,
            head.manifest,
            head.files,
            InputWatermark(head.watermark, head.idle),
            columns if head.begun else None,
            head.final,
        )
        return cls(head.subtask, head.number, head.task, head.after, cut)


@dataclass(frozen=True, slots=True, eq=False)
class StoredSnapshot:
    """A snapshot, and the object that holds it."""

    snapshot: Snapshot
    uri: str
    sha256: str


class CutEntry(msgspec.Struct, frozen=True):
    """What the manifest of a recovery checkpoint says of a subtask; without a ``snapshot`` nothing was delivered."""

    subtask: int
    position: str
    manifest: str
    snapshot: str = ""
    sha256: str = ""
    owned: tuple[str, ...] = ()
    final: bool = False

    @classmethod
    def of(cls, stored: StoredSnapshot) -> CutEntry:
        found = stored.snapshot
        cut = found.cut
        return cls(found.subtask, cut.position, cut.manifest, stored.uri, stored.sha256, cut.owned, cut.final)

    def read(self) -> Cut:
        """The cut. Raise if the snapshot is gone or was changed."""
        if not self.snapshot:
            return Cut(self.position, self.manifest)
        return Snapshot.decode(*read_file(self.snapshot, self.sha256)).cut


class Snapshots:
    """The snapshots of one attempt at the drain, and the number of the newest request to make some."""

    def __init__(self, directory: str) -> None:
        self._directory, self._storage = join(directory, "snapshots"), storage_for(directory)
        self._request = join(directory, "request")

    def listed(self) -> list[tuple[str, int]]:
        """Unit and number of every snapshot that is there."""
        found = self._storage.list(self._directory)
        names = [uri.rpartition("/")[2].removesuffix(SUFFIX).rpartition("-") for uri in found]
        return [(unit, int(number)) for unit, _, number in names]

    def read(self, unit: str, number: int) -> StoredSnapshot:
        uri = self.uri(unit, number)
        data = self._storage.read(uri)
        return StoredSnapshot(Snapshot.decode(*decode_columns(data)), uri, hashlib.sha256(data).hexdigest())

    def create(self, unit: str, snapshot: Snapshot) -> StoredSnapshot:
        """Raise :class:`JobFailed` if another task has this number. An answer that got lost is no loss: the object then
        bears the task's own name.
        """
        uri, data = self.uri(unit, snapshot.number), snapshot.encode()
        if not self._storage.create(uri, data):
            given = self.read(unit, snapshot.number).snapshot
            if (given.task, given.cut.position) != (snapshot.task, snapshot.cut.position):
                raise JobFailed(f"task {given.task} took subtask {snapshot.subtask} over from {snapshot.task}")
        return StoredSnapshot(snapshot, uri, hashlib.sha256(data).hexdigest())

    def take_over(self, unit: str, subtask: int, task: str, base: Callable[[], Cut]) -> Snapshot:
        """Continue the chain of a subtask, which begins at ``base``: its newest cut once more, now this task's.

        A chain that has ended is returned as it is. The base is asked for only where there is no chain: it may belong
        to an earlier attempt, and be gone once this one has a checkpoint of its own.
        """
        for _ in range(TAKEOVERS):
            number = newest_of(self.listed()).get(unit, 0)
            try:
                last = None if number == 0 else self.read(unit, number).snapshot
            except Unreadable:
                if newest_of(self.listed()).get(unit, 0) == number:
                    raise
                continue  # the chain grew, and the driver removed what it passed
            cut = base() if last is None else last.cut
            if last is not None and cut.final:
                return last
            mine = Snapshot(subtask, number + 1, task, cut.position, cut)
            if self._storage.create(self.uri(unit, mine.number), mine.encode()):
                return mine
            with suppress(Unreadable):  # gone, because the chain grew
                given = self.read(unit, mine.number).snapshot
                if given.task == task:
                    return given
        raise JobFailed(f"subtask {subtask} is drained by several tasks at once", hint="run the phase again")

    def remove(self, uris: list[str]) -> None:
        """Best effort: a later sweep finds what is left."""
        for uri in uris:
            try:
                self._storage.delete(uri)
            except (StorageError, OSError):
                return

    def uri(self, unit: str, number: int) -> str:
        return join(self._directory, f"{unit}-{number:06d}{SUFFIX}")

    def ask(self, number: int) -> None:
        """Ask every task to close its file soon. One object, replaced: only the newest request counts."""
        self._storage.replace(self._request, str(number).encode())

    def asked(self) -> int:
        """The newest request; 0 = there is none."""
        try:
            return int(self._storage.read(self._request))
        except Unreadable:
            return 0


def newest_of(listed: Iterable[tuple[str, int]]) -> dict[str, int]:
    """By unit, the number of its newest snapshot."""
    found: dict[str, int] = {}
    for unit, number in listed:
        found[unit] = max(found.get(unit, 0), number)
    return found
