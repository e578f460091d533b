"""The outside of an attempt at a recovery, in memory, so that it can be copied: database, target, markers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import create_engine, event, make_url
from sqlalchemy.pool import StaticPool

from cdr_core.commit.committable import PreparedFile
from cdr_core.commit.listeners import Notice
from cdr_core.commit.sinks import LookUp, Publication, Published
from cdr_core.commit.sinks.base import PROOF
from cdr_core.errors import CommitConflict, Unreadable
from cdr_core.metadata import FencedTransaction, Repository
from cdr_core.metadata import database as database_module
from cdr_core.metadata.database import Database


class MemoryDatabase(Database):
    """One connection to one database in memory, which can be copied."""

    def __init__(self, data: bytes) -> None:
        self._url, self.name = make_url("sqlite://"), "memory"
        self._readers = create_engine(
            "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}, query_cache_size=5000
        )
        event.listen(self._readers, "connect", database_module._prepare_sqlite)
        event.listen(self._readers, "begin", database_module._begin_sqlite)
        self._writers = self._readers.execution_options(**{database_module._WRITE: True})
        self._connection: Any = None
        self.load(data)

    def dump(self) -> bytes:
        return bytes(self._raw().serialize())

    def load(self, data: bytes) -> None:
        # A file with a write-ahead log says so in two bytes of its head; in memory there is none.
        self._raw().deserialize(data[:18] + b"\x01\x01" + data[20:])

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Not through the repository: what a test wants to know, many times."""
        return list(self._raw().execute(statement))

    def _raw(self) -> Any:
        if self._connection is None:
            self._connection = self._readers.raw_connection()
        return self._connection.driver_connection


@dataclass(frozen=True, slots=True)
class Act:
    """What a sleeping attempt will do to the target when it wakes."""

    epoch: int
    base: str
    publication: Publication | None
    notice: Notice | None = None


@dataclass(frozen=True, slots=True)
class Durable:
    """Everything that outlives a process."""

    database: bytes
    target: tuple[Publication, ...]
    markers: frozenset[int]
    files: frozenset[str]


@dataclass(frozen=True, slots=True)
class Root:
    """Where an attempt begins: what is durable, who sleeps, how often somebody may still be killed."""

    durable: Durable
    asleep: Act | None
    kills: int
    lost: bool = False
    """Whether the database has ever lost rows that were there."""


class World:
    """The outside of an attempt: database, target, markers. ``step`` is called around everything that is durable."""

    def __init__(self, database: MemoryDatabase, recovery: str, step: Callable[[str], None]) -> None:
        self.database, self.recovery, self._step = database, recovery, step
        self.repository = Repository(database)
        self.target: tuple[Publication, ...] = ()
        self.markers: frozenset[int] = frozenset()
        self.files: frozenset[str] = frozenset()
        self.about_to: Act | None = None
        self.epoch = 0
        self.stage = "start"

    def load(self, durable: Durable) -> None:
        self.database.load(durable.database)
        self.target, self.markers, self.files = durable.target, durable.markers, durable.files

    def dump(self) -> Durable:
        return Durable(self.database.dump(), self.target, self.markers, self.files)

    def step(self, name: str, about_to: Act | None = None) -> None:
        self.about_to = about_to
        self._step(name)
        self.about_to = None

    @contextmanager
    def fenced(self, recovery: str, epoch: int) -> Iterator[FencedTransaction]:
        """The repository's own, and a step behind it."""
        with self.repository.fenced(recovery, epoch) as transaction:
            yield transaction
        self.step("row")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.repository, name)


class Sink:
    """A target whose base is the number of its publications. See :class:`cdr_core.commit.sinks.base.Sink`."""

    stores = True
    compares = True
    remembers = True

    def __init__(self, world: World) -> None:
        self._world = world

    def look_up(self, commit_user: str) -> LookUp:
        self._world.step("look")
        target = self._world.target
        found = tuple(
            Published(each.commit_id, f"at {number}", proof=each.properties[PROOF])
            for number, each in enumerate(target)
            if each.commit_user == commit_user and self.remembers
        )
        return LookUp(str(len(target)), found, frozenset(str(number) for number in range(len(target) + 1)))

    def publish(self, base: str, publication: Publication) -> Published:
        publication.permit()
        self._world.step("publish", Act(self._world.epoch, base, publication))
        return self.put(base, publication)

    def put(self, base: str, publication: Publication) -> Published:
        if base != str(len(self._world.target)) and self.compares:
            raise CommitConflict("somebody else was first")
        self._world.target = (*self._world.target, publication)
        self._world.step("published")
        return Published(publication.commit_id, f"at {len(self._world.target) - 1}")

    def open_file(self, file: PreparedFile) -> Any:
        if file.path not in self._world.files:
            raise Unreadable(f"{file.path} is missing")

        class Nothing:
            def close(self) -> None: ...

        return Nothing()

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the committer has no business with {name}")


class Marker:
    """A listener whose effect is idempotent."""

    name = "marker"

    def __init__(self, world: World) -> None:
        self._world = world

    def committed(self, notice: Notice) -> None:
        self._world.step("mark", Act(self._world.epoch, "", None, notice))
        self._world.markers |= {notice.commit_id}
        self._world.step("marked")


def last_complete(database: MemoryDatabase) -> int:
    """The last complete recovery checkpoint; 0 = there is none."""
    rows = database.query("select max(checkpoint_id) from recovery_checkpoint where state in ('COMPLETED', 'EXPIRED')")
    return int(rows[0][0] or 0)
