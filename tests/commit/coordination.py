"""A commit coordinator with a target and a store in memory, for tests of its rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from cdr_core.commit.committable import Committable, PreparedFile
from cdr_core.commit.coordinator import Commit, Coordinator
from cdr_core.commit.events import (
    CheckpointComplete,
    CommittableEvent,
    ResetToCheckpoint,
    RestoredCommittableEvent,
    Start,
)
from cdr_core.commit.listeners import Listener

EPOCH = 3


def entry(subtask: int, checkpoint: int, *rows: str, watermark: int | None = None, idle: bool = False) -> Committable:
    """One file per row, named after it: what is published can be counted by name."""
    files = tuple(PreparedFile(row, 1, 10, 0) for row in rows)
    return Committable(subtask, checkpoint, files, watermark, idle)


class Target:
    """See :class:`cdr_core.commit.coordinator.Committer`. It outlives coordinators, as a table does."""

    def __init__(self, final: int | None = None) -> None:
        self.commits: list[Commit] = []
        self.final = final
        self.fails = False

    @property
    def rows(self) -> Counter[str]:
        return Counter(file.path for commit in self.commits for file in commit.files)

    @property
    def ids(self) -> list[int]:
        return [commit.commit_id for commit in self.commits]

    def committed(self) -> frozenset[int]:
        return frozenset(self.ids)

    def commit(self, commit: Commit) -> bool:
        if self.fails:
            raise OSError("the target is away")
        if commit.commit_id in self.ids:
            return True
        if commit.files or commit.commit_id == self.final:
            assert commit.commit_id > max(self.ids, default=0), "ids are committed ascending"
            self.commits.append(commit)
            return True
        return False


class Memory:
    """See :class:`cdr_core.commit.coordinator.Store`."""

    def __init__(self) -> None:
        self.saved: Mapping[str, Any] | None = None
        self.saves = 0

    def load(self) -> Mapping[str, Any] | None:
        return self.saved

    def save(self, listener_states: Mapping[str, Any]) -> None:
        self.saved, self.saves = dict(listener_states), self.saves + 1


class World:
    """Subtasks, their durable entries (as rows are), a target, and the coordinator of the moment."""

    def __init__(self, subtasks: int = 2, listeners: Collection[Listener] = (), *, together: bool = False) -> None:
        self.subtasks, self.listeners, self.together = range(subtasks), tuple(listeners), together
        self.target, self.store = Target(), Memory()
        self.rows: dict[tuple[int, int], Committable] = {}
        self.coordinator = self.new()
        self.coordinator.deliver(Start())

    def new(self, epoch: int = EPOCH) -> Coordinator:
        return Coordinator(self.subtasks, epoch, self.target, self.store, self.listeners, together=self.together)

    def hand(self, *entries: Committable, epoch: int = EPOCH) -> None:
        for each in entries:
            self.rows[each.subtask, each.checkpoint_id] = each
            self.coordinator.deliver(CommittableEvent(each, epoch))

    def complete(self, checkpoint: int) -> None:
        self.coordinator.deliver(CheckpointComplete(checkpoint))

    def restart(self, checkpoint: int) -> None:
        """A new coordinator from what is durable; what was handed over after the checkpoint is forgotten."""
        self.rows = {key: each for key, each in self.rows.items() if key[1] <= checkpoint}
        self.coordinator = self.new()
        self.coordinator.deliver(ResetToCheckpoint(checkpoint))
        self.coordinator.deliver(Start())
        if checkpoint:
            self.restore(checkpoint)

    def restore(self, checkpoint: int) -> None:
        for subtask in self.subtasks:
            own = tuple(each for key, each in sorted(self.rows.items()) if key[0] == subtask)
            self.coordinator.deliver(RestoredCommittableEvent(subtask, checkpoint, own))
