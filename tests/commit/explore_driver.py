"""The drain's driver of one attempt, around the shipped coordinator."""

from __future__ import annotations

import json
from typing import Any

from cdr_core.commit.commit_store import DatabaseStore, Rows, TableCommitter
from cdr_core.commit.committable import Committable, PreparedFile
from cdr_core.commit.coordinator import Commit, Coordinator
from cdr_core.commit.events import (
    CheckpointAborted,
    CheckpointComplete,
    CheckpointCoordinator,
    CommittableEvent,
    Event,
)
from cdr_core.drain.checkpoint_store import prepared
from cdr_core.metadata import FencedTransaction, Phase
from tests.commit.explore_world import Marker, Sink, World, last_complete
from tests.metadata.steps import runner

SUBTASKS = (0, 1)
RECORDS = 2
"""Of each subtask; every checkpoint takes one of each."""


class Driver:
    """The drain's driver of one attempt, as ``DrainWatch`` and ``go_back`` order their steps.

    Its subtasks write a file per record. Subclasses are drivers with a fault, which the exploration has to find.
    """

    sink_type: type[Sink] = Sink
    coordinator_type: type[Coordinator] = Coordinator
    together = False

    def __init__(self, world: World, *, gives_up: bool) -> None:
        self._world, self.gives_up = world, gives_up
        self._done: dict[int, int] = {}

    def run(self) -> None:
        world = self._world
        attempt = world.repository.begin_attempt(world.recovery, Phase.DRAIN, runner())
        assert attempt is not None
        world.epoch = attempt.epoch
        world.step("begun")
        complete = last_complete(world.database)
        with world.fenced(world.recovery, attempt.epoch) as transaction:
            for subtask in SUBTASKS:
                if subtask not in self._finished():
                    self.reset(transaction, subtask, complete)
        done = world.database.query(f"select subtask, records from prepared where checkpoint_id <= {complete}")
        self._done = {subtask: sum(records for at, records in done if at == subtask) for subtask in SUBTASKS}
        self._done |= dict.fromkeys(self._finished(), RECORDS)
        coordinator = self._restored(complete)
        world.stage = "drain"
        while min(self._done.values()) < RECORDS:
            self._checkpoint(coordinator)
        world.stage = "finish"
        self._finish()

    def reset(self, transaction: FencedTransaction, subtask: int, checkpoint: int) -> None:
        transaction.reset_subtask(subtask, checkpoint)

    def _rows(self) -> Rows:
        world: Any = self._world
        return Rows(world, self._world.repository.recovery(self._world.recovery), self._world.epoch)

    def _entries(self) -> list[Committable]:
        rows = self._world.database.query("select manifest from prepared order by checkpoint_id, subtask")
        return [Committable.from_json(json.loads(manifest)) for (manifest,) in rows]

    def _restored(self, checkpoint: int, final: int | None = None) -> Coordinator:
        rows, sink = self._rows(), self.sink_type(self._world)
        committer = TableCommitter(rows, sink, self._proof, final=final, check=True)
        listeners, epoch = [Marker(self._world)], self._world.epoch
        made = self.coordinator_type(SUBTASKS, epoch, committer, DatabaseStore(rows), listeners, together=self.together)
        made.restore(checkpoint, self._entries())
        return made

    def _proof(self, commit: Commit) -> dict[str, Any]:
        """What was drained up to the checkpoint whose completion allows the commit, whoever drained it."""
        entries = [entry for entry in self._entries() if entry.checkpoint_id <= commit.completed]
        return {"records": sorted(file.path.rpartition(".")[0] for entry in entries for file in entry.files)}

    def _checkpoint(self, coordinator: Coordinator) -> None:
        world = self._world
        number = 1 + world.database.query("select coalesce(max(checkpoint_id), 0) from recovery_checkpoint")[0][0]
        coordinator.deliver(CheckpointCoordinator(number))
        with world.fenced(world.recovery, world.epoch) as transaction:
            transaction.begin_checkpoint(number)
        for subtask in SUBTASKS:
            entry = self._cut(subtask, number)
            with world.fenced(world.recovery, world.epoch) as transaction:
                transaction.add_prepared(prepared(entry))
            coordinator.deliver(CommittableEvent(entry, world.epoch))
        if self.gives_up:
            self.gives_up = False
            with world.fenced(world.recovery, world.epoch) as transaction:
                transaction.abort_checkpoint(number, "given up")
            coordinator.deliver(CheckpointAborted(number))
            if min(self._done.values()) == RECORDS:
                self._checkpoint(coordinator)
        else:
            self.complete(coordinator, number)

    def _cut(self, subtask: int, number: int) -> Committable:
        files = self.output(subtask)
        return Committable(subtask, number, files, watermark=10 * self._done[subtask] + subtask)

    def output(self, subtask: int) -> tuple[PreparedFile, ...]:
        """What the subtask has written since its last cut."""
        if subtask in self._finished():
            known = {path for entry in self._entries() for path in (file.path for file in entry.files)}
            left = [path for path in self._finished()[subtask] if path not in known]
        else:
            left = [self._write(subtask)] if self._done[subtask] < RECORDS else []
        return tuple(PreparedFile(path, 1, 10, 0) for path in left)

    def _write(self, subtask: int) -> str:
        path = f"{subtask}.{self._done[subtask]}.e{self._world.epoch}"
        self._world.files |= {path}
        self._done[subtask] += 1
        return path

    def _finished(self) -> dict[int, list[str]]:
        """Files of the subtasks that are drained to their end, which a row says."""
        rows = self._world.database.query("select unit, result from unit_result where phase = 'drain'")
        return {int(unit): json.loads(result)["files"] for unit, result in rows}

    def complete(self, coordinator: Coordinator, number: int) -> None:
        with self._world.fenced(self._world.recovery, self._world.epoch) as transaction:
            transaction.complete_checkpoint(number, f"/{number}", "00")
        coordinator.deliver(CheckpointComplete(number))

    def _finish(self) -> None:
        """As the commit phase: a coordinator of its own, which finishes the rest."""
        last = last_complete(self._world.database)
        self._restored(last, final=last)


class Uneven(Driver):
    """Its first subtask is finished before the first checkpoint: it is never reset, its output comes with the next."""

    def _checkpoint(self, coordinator: Coordinator) -> None:
        world = self._world
        if 0 not in self._finished():
            files = [self._write(0) for _ in range(RECORDS)]
            with world.fenced(world.recovery, world.epoch) as transaction:
                transaction.record_unit(Phase.DRAIN, "0", "/0", RECORDS, 10, {"files": files})
        super()._checkpoint(coordinator)


class Mute(Coordinator):
    """Where all is published at the end, there is none before."""

    def deliver(self, event: Event) -> None:
        pass


class AtEnd(Driver):
    """Publishes everything in one step, when it is drained."""

    together = True

    def _restored(self, checkpoint: int, final: int | None = None) -> Coordinator:
        if final is not None:
            return super()._restored(checkpoint, final)
        nobody: Any = None
        return Mute(SUBTASKS, self._world.epoch, nobody, nobody)
