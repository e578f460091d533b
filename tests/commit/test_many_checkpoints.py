"""Hundreds of durable recovery checkpoints, each published when it completes: a commit reads what is new, not all."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from sqlalchemy import event

from cdr_core.audit.ledger import Ledger, Tally
from cdr_core.commit.committable import Committable, PreparedFile
from cdr_core.commit.events import CheckpointComplete, CheckpointCoordinator, CommittableEvent
from cdr_core.commit.sinks import LookUp, Publication, Published
from cdr_core.drain import commit_setup as coordination
from cdr_core.drain.checkpoint_manifest import CheckpointManifest
from cdr_core.drain.checkpoint_store import prepared
from cdr_core.drain.snapshots import Cut, CutEntry, Snapshot, StoredSnapshot
from cdr_core.metadata import Phase, RecoveryOptions, Repository, upgrade
from cdr_core.metadata.models import Base
from cdr_core.planning.plan import PlanChannels, Subtask, VirtualChannel
from cdr_core.runtime.unit_results import PhaseResult
from cdr_core.storage.column_codec import Columns
from tests.commit.explore_world import MemoryDatabase
from tests.metadata import steps

CHECKPOINTS = 200
SUBTASKS = (0, 1)


class Sink:
    """A target in memory, which remembers how many publications there were."""

    stores = False

    def __init__(self) -> None:
        self.published: list[Published] = []

    def look_up(self, _user: str) -> LookUp:
        return LookUp(str(len(self.published)), tuple(self.published), frozenset({str(len(self.published))}))

    def publish(self, _base: str, publication: Publication) -> Published:
        publication.permit()
        self.published.append(Published(publication.commit_id, f"at {publication.commit_id}"))
        return self.published[-1]


class RowsRead:
    """How many rows came from the database since it was asked last."""

    def __init__(self) -> None:
        self._count = 0
        event.listen(Base, "load", self._loaded, propagate=True)

    def _loaded(self, *_: object) -> None:
        self._count += 1

    def since(self) -> int:
        count, self._count = self._count, 0
        return count

    def close(self) -> None:
        event.remove(Base, "load", self._loaded)


class Drain:
    """The driver of a drain, as far as a commit coordinator knows it."""

    def __init__(self, folder: Path) -> None:
        upgrade(f"sqlite:///{folder / 'cdr.db'}")
        self.repository = Repository(MemoryDatabase((folder / "cdr.db").read_bytes()))
        options = RecoveryOptions(on_corrupt="fail", commit="per-checkpoint")
        attempt = steps.reach(self.repository, Phase.DRAIN, target="iceberg:lake/db.t", options=options)
        self.recovery, self.epoch = self.repository.recovery(attempt.recovery_id), attempt.epoch
        channels = PlanChannels.of(VirtualChannel(0, 0, s, 0, 10, (s,)) for s in SUBTASKS)
        subtasks = tuple(Subtask("sink", s) for s in SUBTASKS)
        exchanges = (SimpleNamespace(name="main"),)
        self.plan = SimpleNamespace(
            sha256="p", metadata_sha256="m", subtasks=subtasks, channels=channels, exchanges=exchanges
        )
        self._folder = folder

    def _snapshot(self, subtask: int, number: int, columns: Columns) -> StoredSnapshot:
        uri = self._folder / f"{subtask}-{number}.msgpack"
        snapshot = Snapshot(subtask, number, "task", "before", Cut("x", "set", columns=columns))
        uri.write_bytes(snapshot.encode())
        return StoredSnapshot(snapshot, str(uri), hashlib.sha256(snapshot.encode()).hexdigest())

    def outputs(self, _kind: type[PhaseResult]) -> list[Any]:
        return []

    def cut(self, coordinator: Any, number: int) -> None:
        """Each subtask drains one record more; everything is durable before it is told."""
        coordinator.deliver(CheckpointCoordinator(number))
        entries = [Committable(s, number, (PreparedFile(f"{s}-{number}", 1, 10, 0),)) for s in SUBTASKS]
        sums = np.array([Tally(records=number).to_fold()], np.uint64)
        columns = [Ledger.of(np.array([s]), sums).to_columns() for s in SUBTASKS]
        stored = [self._snapshot(s, number, columns[s]) for s in SUBTASKS]
        data = msgspec.json.encode(CheckpointManifest(number, tuple(CutEntry.of(each) for each in stored)))
        manifest = self._folder / f"{number}.json"
        manifest.write_bytes(data)
        with self.repository.fenced(self.recovery.id, self.epoch) as transaction:
            transaction.begin_checkpoint(number)
            for entry in entries:
                transaction.add_prepared(prepared(entry))
            transaction.complete_checkpoint(number, str(manifest), hashlib.sha256(data).hexdigest())
            if number > 1:
                transaction.expire_checkpoint(number - 1, "a later one completed")
        for entry in entries:
            coordinator.deliver(CommittableEvent(entry, self.epoch))


def test_rows_read_by_a_commit_do_not_grow_with_the_number_of_checkpoints_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """004-11: prepared output and the log stay in the database; nobody reads all of it for every commit."""
    drain, sink = Drain(tmp_path), Sink()
    given: Any = drain
    monkeypatch.setattr(coordination, "sink_for", lambda _: sink)
    coordinator = coordination.while_draining(given)
    assert coordinator is not None
    read, counted = RowsRead(), []
    try:
        for number in range(1, CHECKPOINTS + 1):
            drain.cut(coordinator, number)
            read.since()
            coordinator.deliver(CheckpointComplete(number))
            counted.append(read.since())
    finally:
        read.close()
    assert [each.commit_id for each in sink.published] == list(range(1, CHECKPOINTS + 1))
    assert len(drain.repository.prepared(drain.recovery.id)) == CHECKPOINTS * len(SUBTASKS)
    assert 0 < max(counted) == max(counted[:3]) < 30
    # A new attempt reads them all, once, and then goes on as before.
    again = coordination.while_draining(given)
    assert again is not None
    assert (again.pending, len(sink.published)) == (0, CHECKPOINTS)
