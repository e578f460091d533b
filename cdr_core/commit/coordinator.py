"""The commit coordinator: collects what subtasks prepared and commits it when a recovery checkpoint completes.

Its memory is worth nothing: entries are durable rows before it hears of them, and a new coordinator is built from those
rows after every restart. Its own durable state is the commit user and what listeners have seen, never a file. Subtasks
hand over and go on without waiting for it.

Invariants, by the numbers of the protocol: a checkpoint's entries are committed only when it, or a later one, is
complete (I1); entries leave the memory only after their commit (I2); ids are committed once and ascending (I3, I4);
every subtask has an entry for a checkpoint that completes, even an empty one (I5); what a subtask handed over before it
was reset is dropped (I6); watermarks never fall (I7); giving a checkpoint up rolls nothing back (I9).

One event after another, on one thread: an event that comes while another is handled waits for its turn.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cdr_core.commit import events as on
from cdr_core.commit.committable import Committable, PreparedFile
from cdr_core.commit.events import MOVES, TABLE, Event, Reaction, State
from cdr_core.commit.listeners import Listener, Listeners, Notice
from cdr_core.commit.watermarks import WatermarkAligner
from cdr_core.errors import Fenced, IllegalState, InDoubt, NotReady
from cdr_core.faults import reach


@dataclass(frozen=True, slots=True)
class Commit:
    """What becomes visible in one step; ``completed`` is the checkpoint (≥ ``commit_id``) that lets it happen."""

    commit_id: int
    entries: tuple[Committable, ...]
    watermark: int | None
    completed: int

    @property
    def files(self) -> tuple[PreparedFile, ...]:
        return tuple(file for entry in self.entries for file in entry.files)

    @property
    def records(self) -> int:
        return sum(entry.records for entry in self.entries)


class Committer(Protocol):
    """The way into the target."""

    def committed(self) -> Collection[int]:
        """Every commit that the target shows, or that is recorded.

        Commits come in ascending order, so everything below the highest is in the target, also where the target's own
        history has forgotten it.
        """

    def commit(self, commit: Commit) -> bool:
        """Make it visible exactly once and record it, also after earlier tries; ``False`` = there is nothing to
        publish.
        """


class Store(Protocol):
    """What outlives the coordinator."""

    def load(self) -> Mapping[str, Any] | None:
        """The states of the listeners; ``None`` when nothing was saved yet. Another commit user's are refused."""

    def save(self, listener_states: Mapping[str, Any]) -> None:
        """The commit user and the states of the listeners, durable when this returns."""


def require_known(committed: Collection[int], known: Container[int], checkpoint: int) -> None:
    """Everything that is committed is among what the database knows, up to its last complete checkpoint (0 = none).

    A database may have lost its last transactions (a failover to a replica that was behind); the target has not. What
    was prepared for a commit that only the target knows would be prepared and committed again.
    """
    unknown = [number for number in committed if number > checkpoint or number not in known]
    if unknown:
        raise InDoubt(
            f"the target shows commit {max(unknown)} of this recovery, and the metadata database, whose last complete"
            f" recovery checkpoint is {checkpoint or 'none'}, does not know it",
            hint="the database lost its last transactions: bring it to its newest state, or compare the target with the"
            " source by cdr verify and recover to another target",
        )


class Coordinator:
    """See the module. Any exception but ``NotReady`` and ``Fenced`` ends it: the attempt fails, the next one restores.

    ``together``: everything up to the checkpoint that completes becomes one commit under its number; otherwise there is
    one commit per checkpoint, also for those that were given up.
    """

    def __init__(
        self,
        subtasks: Collection[int],
        epoch: int,
        committer: Committer,
        store: Store,
        listeners: Collection[Listener] = (),
        *,
        together: bool = False,
    ) -> None:
        self._epoch, self._committer, self._store, self._together = epoch, committer, store, together
        self._all_listeners = tuple(listeners)
        self._listeners = Listeners((), {})
        self._entries: dict[int, dict[int, Committable]] = {subtask: {} for subtask in subtasks}
        self._highest = dict.fromkeys(self._entries, 0)
        self._aligner = WatermarkAligner(self._entries)
        self._restoring = 0
        self._restored: set[int] = set()
        self._saved: Mapping[str, Any] | None = None
        self._started = False
        self._waiting: deque[Event] = deque()
        self._busy = False
        self._thread = threading.get_ident()
        self.state = State.CREATED

    def restore(self, checkpoint: int, durable: Iterable[Committable]) -> None:
        """From CREATED to RUNNING with all durable entries: those up to the checkpoint (0 = none) are committed, the
        others wait for the next one. The owner of the epoch has forgotten before what must not be committed.
        """
        entries = sorted(durable, key=lambda entry: entry.checkpoint_id)
        self.deliver(on.ResetToCheckpoint(checkpoint))
        self.deliver(on.Start())
        if checkpoint:
            for subtask in self._entries:
                own = tuple(entry for entry in entries if entry.subtask == subtask)
                self.deliver(on.RestoredCommittableEvent(subtask, checkpoint, own))
        else:
            for entry in entries:
                self.deliver(on.CommittableEvent(entry, self._epoch))

    @property
    def pending(self) -> int:
        """How many entries are in memory."""
        return sum(len(entries) for entries in self._entries.values())

    def deliver(self, event: Event) -> None:
        """Handle an event, and those that arrive meanwhile, in their order."""
        if threading.get_ident() != self._thread:
            raise IllegalState("the commit coordinator was called from another thread than its own")
        self._waiting.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._waiting:
                self._handle(self._waiting.popleft())
        except (NotReady, Fenced):
            raise
        except BaseException:
            self._waiting.clear()
            self.state = State.CLOSED
            raise
        finally:
            self._busy = False

    def _handle(self, event: Event) -> None:
        reaction = TABLE[type(event)][self.state]
        if reaction is Reaction.FAIL_CHECKPOINT:
            raise NotReady(f"the commit coordinator is {self.state}: this checkpoint cannot begin", hint="ask again")
        if reaction in (Reaction.FAIL_JOB, Reaction.ILLEGAL):
            raise IllegalState(f"{type(event).__name__} came while the commit coordinator is {self.state}")
        if reaction is Reaction.HANDLE:
            _HANDLERS[type(event)](self, event)

    def _move(self, to: State) -> None:
        if to not in MOVES[self.state]:
            raise IllegalState(f"the commit coordinator cannot go from {self.state} to {to}")
        self.state = to

    def _reset_to(self, event: on.ResetToCheckpoint) -> None:
        if event.checkpoint:
            self._restoring = event.checkpoint
            self._move(State.RESTORING)

    def _start(self, _event: on.Start) -> None:
        if self._started:
            raise IllegalState("the commit coordinator was started twice")
        self._started = True
        self._saved = self._store.load()
        self._listeners = Listeners(self._all_listeners, self._saved or {})
        if self.state is State.CREATED:
            self._committed_of((), 0)
            self._move(State.RUNNING)
        else:
            self._recover_if_all_are_here()

    def _snapshot(self, _event: on.CheckpointCoordinator) -> None:
        self._save()

    def _take(self, event: on.CommittableEvent) -> None:
        entry = event.entry
        if event.epoch != self._epoch:
            raise Fenced(
                f"prepared output of subtask {entry.subtask} comes from epoch {event.epoch}, not {self._epoch}"
            )
        self._add(entry)

    def _restore(self, event: on.RestoredCommittableEvent) -> None:
        if event.checkpoint < self._restoring or event.subtask in self._restored:
            raise IllegalState(
                f"subtask {event.subtask} restores checkpoint {event.checkpoint} while {self._restoring} is restored"
            )
        self._restored.add(event.subtask)
        for entry in sorted(event.entries, key=lambda each: each.checkpoint_id):
            if entry.subtask != event.subtask:
                raise IllegalState(f"subtask {event.subtask} restores an entry of subtask {entry.subtask}")
            self._add(entry)
        self._recover_if_all_are_here()

    def _add(self, entry: Committable) -> None:
        if entry.checkpoint_id <= self._highest[entry.subtask]:
            raise IllegalState(
                f"subtask {entry.subtask} handed over checkpoint {entry.checkpoint_id} "
                f"after {self._highest[entry.subtask]}"
            )
        self._entries[entry.subtask][entry.checkpoint_id] = entry
        self._highest[entry.subtask] = entry.checkpoint_id

    def _recover_if_all_are_here(self) -> None:
        """Commit what the target does not hold, ascending from the first that is absent; only then run."""
        if self._started and self._restored == self._entries.keys():
            one_by_one = {number for entries in self._entries.values() for number in entries}
            known = {self._restoring} if self._together else one_by_one
            self._commit_up_to(self._restoring, self._committed_of(known, self._restoring))
            self._move(State.RUNNING)

    def _committed_of(self, known: Container[int], checkpoint: int) -> Collection[int]:
        """What is committed, which must be known."""
        committed = self._committer.committed()
        require_known(committed, known, checkpoint)
        return committed

    def _complete(self, event: on.CheckpointComplete) -> None:
        self._commit_up_to(event.checkpoint, ())

    def _commit_up_to(self, checkpoint: int, committed: Collection[int]) -> None:
        # One that completes a second time, or after a later one, has no entries any more.
        missing = [subtask for subtask, entries in self._entries.items() if checkpoint not in entries]
        if missing:
            raise IllegalState(
                f"checkpoint {checkpoint} is complete without an entry of subtask {min(missing)}: nothing is committed"
            )
        for commit in self._commits(checkpoint):
            # What is below the latest was committed before it, also where neither the target nor the log tells of it.
            forgotten = commit.commit_id < max(committed, default=0) and commit.commit_id not in committed
            visible = bool(commit.files) if forgotten else self._committer.commit(commit)
            if visible and self._listeners.tell(Notice(commit.commit_id, commit.records, commit.watermark)):
                self._save()
        for entries in self._entries.values():
            for number in [number for number in entries if number <= checkpoint]:
                del entries[number]

    def _commits(self, checkpoint: int) -> list[Commit]:
        """Everything up to a checkpoint, ascending."""
        numbers = sorted({number for entries in self._entries.values() for number in entries if number <= checkpoint})
        commits = []
        for number in numbers:
            of = {subtask: entries[number] for subtask, entries in self._entries.items() if number in entries}
            ordered = tuple(of[subtask] for subtask in sorted(of))
            commits.append(Commit(number, ordered, self._aligner.align(number, of), checkpoint))
        if not self._together or not commits:
            return commits
        everything = tuple(entry for commit in commits for entry in commit.entries)
        return [Commit(checkpoint, everything, commits[-1].watermark, checkpoint)]

    def _reset_subtask(self, event: on.SubtaskReset) -> None:
        entries = self._entries[event.subtask]
        if any(number < event.checkpoint for number in entries):
            raise IllegalState(
                f"subtask {event.subtask} goes back to checkpoint {event.checkpoint}, "
                f"but its entry for {min(entries)} was not committed"
            )
        entries.clear()
        self._highest[event.subtask] = event.checkpoint

    def _save(self) -> None:
        states = self._listeners.states
        if states != self._saved:
            reach("coordinator.before-save")
            self._store.save(states)
            reach("coordinator.saved")
            self._saved = states

    def _close(self, _event: on.Close) -> None:
        self._move(State.CLOSED)


_HANDLERS: Mapping[type[Event], Callable[[Coordinator, Any], None]] = {
    on.ResetToCheckpoint: Coordinator._reset_to,
    on.Start: Coordinator._start,
    on.CheckpointCoordinator: Coordinator._snapshot,
    on.CommittableEvent: Coordinator._take,
    on.RestoredCommittableEvent: Coordinator._restore,
    on.CheckpointComplete: Coordinator._complete,
    on.SubtaskReset: Coordinator._reset_subtask,
    on.Close: Coordinator._close,
}
