"""Storage and database of a job in miniature: objects and rows in memory, with the rules that the real ones keep."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from cdr_core.errors import Fenced, Refused, StorageError, Unreadable
from cdr_core.metadata import Command, CommandState, Phase, Prepared, RecoveryCheckpointState
from cdr_core.metadata.states import move
from cdr_core.metadata.values import RecoveryCheckpoint, UnitResult

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
USERS = (
    "runtime.workspace",
    "runtime.unit_progress",
    "runtime.driver",
    "drain.snapshots",
    "drain.checkpoint_manifest",
    "drain.resume",
    "storage.column_codec",
)
"""Modules that ask for a storage."""


class Disk:
    """Objects by directory. ``fails_in`` operations from now, one fails; before each, ``pause`` is called."""

    def __init__(self) -> None:
        self._folders: dict[str, dict[str, bytes]] = {}
        self.fails_in: int | None = None
        self.pause: Callable[[], None] = lambda: None

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Whoever asks for a storage gets this one."""
        with ExitStack() as stack:
            for module in USERS:
                stack.enter_context(patch(f"cdr_core.{module}.storage_for", lambda _: self))
            yield

    def create(self, uri: str, data: bytes) -> bool:
        self._trouble(uri)
        folder, name = self._folder(uri)
        if name in folder:
            return False
        folder[name] = data
        return True

    def replace(self, uri: str, data: bytes) -> None:
        self._trouble(uri)
        folder, name = self._folder(uri)
        folder[name] = data

    def read(self, uri: str) -> bytes:
        self._trouble(uri)
        folder, name = self._folder(uri)
        if name not in folder:
            raise Unreadable(f"{uri} is not there")
        return folder[name]

    def exists(self, uri: str) -> bool:
        folder, name = self._folder(uri)
        return name in folder

    def list(self, uri: str) -> list[str]:
        self._trouble(uri)
        return [f"{uri}/{name}" for name in sorted(self._folders.get(uri, {}))]

    def _folder(self, uri: str) -> tuple[dict[str, bytes], str]:
        path, _, name = uri.rpartition("/")
        return self._folders.setdefault(path, {}), name

    def delete(self, uri: str) -> None:
        self._trouble(uri)
        folder, name = self._folder(uri)
        folder.pop(name, None)

    def _trouble(self, uri: str) -> None:
        self.pause()
        if self.fails_in is None:
            return
        self.fails_in -= 1
        if self.fails_in < 0:
            self.fails_in = None
            raise StorageError(f"{uri} cannot be reached just now")


class Rows:
    """The database of one recovery, and (one after another) its transactions; those of an older epoch are refused."""

    def __init__(self) -> None:
        self.epoch = 0
        self._checkpoints: dict[int, RecoveryCheckpoint] = {}
        self._prepared: dict[tuple[int, int], Prepared] = {}
        self._units: dict[str, UnitResult] = {}
        self._commands: dict[int, Command] = {}
        self._taken: dict[int, int] = {}

    # --- as a repository ---

    def units(self, _recovery: str, _phase: Phase) -> tuple[UnitResult, ...]:
        return tuple(self._units.values())

    def checkpoints(
        self, _recovery: str, state: RecoveryCheckpointState | None = None
    ) -> tuple[RecoveryCheckpoint, ...]:
        return tuple(row for row in self._checkpoints.values() if state in (None, row.state))

    def prepared(self, _recovery: str, after: int = 0) -> tuple[Prepared, ...]:
        return tuple(self._prepared[key] for key in sorted(self._prepared) if key[0] > after)

    def commands(self, _recovery: str) -> tuple[Command, ...]:
        return tuple(self._commands.values())

    def commit_log(self, _recovery: str) -> tuple[()]:
        return ()

    def spill_sets(self, _recovery: str) -> tuple[()]:
        return ()

    def begin_attempt(self) -> int:
        """The epoch of a new attempt; what the one before left under way is aborted."""
        self.epoch += 1
        for number, row in self._checkpoints.items():
            if row.state is RecoveryCheckpointState.TRIGGERED:
                self._end(number, RecoveryCheckpointState.ABORTED)
        return self.epoch

    def request(self, aligned: float | None) -> None:
        number = len(self._commands) + 1
        args = {"aligned_timeout": aligned}
        asked = Command(number, "r", "checkpoint", args, CommandState.REQUESTED, None, LONG_AGO, None)
        self._commands[number] = asked

    @contextmanager
    def fenced(self, _recovery: str, epoch: int) -> Iterator[Rows]:
        if epoch != self.epoch:
            raise Fenced(f"epoch {epoch} was overtaken by {self.epoch}")
        yield self

    # --- as a transaction ---

    def set_running(self, _phase: Phase, _running: Any) -> None:
        """Nobody looks."""

    def refuse_overdue(self, timeout: float) -> None:
        """The simulated requests are younger than their timeout."""

    def take_commands(self) -> tuple[Command, ...]:
        waiting = [c for c in self._commands.values() if c.answered_at is None and self._taken.get(c.id) != self.epoch]
        self._taken |= {command.id: self.epoch for command in waiting}
        return tuple(waiting)

    def answer_command(self, number: int, state: CommandState, answer: Any) -> None:
        command = self._commands[number]
        self._commands[number] = replace(
            command, state=move(command.state, state), answer=dict(answer), answered_at=LONG_AGO
        )

    def record_unit(self, phase: Phase, unit: str, manifest: str, records: int, size: int, result: Any) -> None:
        assert unit not in self._units, "a unit is recorded once"
        self._units[unit] = UnitResult(phase, unit, self.epoch, manifest, records, size, result)

    def begin_checkpoint(self, number: int) -> None:
        if number <= max(self._checkpoints, default=0):
            raise Refused(f"recovery checkpoint {number} is not a new one")
        state = RecoveryCheckpointState.TRIGGERED
        self._checkpoints[number] = RecoveryCheckpoint(
            number, self.epoch, state, None, None, None, None, LONG_AGO, None
        )

    def abort_checkpoint(self, number: int, _reason: str) -> None:
        self._end(number, RecoveryCheckpointState.ABORTED)

    def expire_checkpoint(self, number: int, _reason: str) -> None:
        self._end(number, RecoveryCheckpointState.EXPIRED)

    def complete_checkpoint(self, number: int, manifest: str, sha256: str, result: Any) -> None:
        self._end(number, RecoveryCheckpointState.COMPLETED, manifest=manifest, sha256=sha256, result=result)
        for older, row in self._checkpoints.items():
            if older < number and row.state is RecoveryCheckpointState.TRIGGERED:
                self._end(older, RecoveryCheckpointState.SUBSUMED)

    def add_prepared(self, entry: Prepared) -> None:
        key = (entry.checkpoint_id, entry.subtask)
        if key in self._prepared:
            raise Refused(f"output of subtask {entry.subtask} for checkpoint {entry.checkpoint_id} is recorded already")
        self._prepared[key] = entry

    def forget_prepared(self, numbers: Any) -> None:
        self._prepared = {at: entry for at, entry in self._prepared.items() if entry.checkpoint_id not in numbers}

    def forget_prepared_before(self, number: int) -> None:
        self._prepared = {at: entry for at, entry in self._prepared.items() if entry.checkpoint_id >= number}

    def seal_spill_set(self, subtask: int, manifest: str, *_: Any, again: bool) -> Any:
        assert again, "only sets that were made again come here"
        return SimpleNamespace(id=(subtask, manifest))

    def acquire_grant(self, *_: Any) -> None:
        """Sets in memory need none."""

    def reset_subtask(self, subtask: int, to: int) -> None:
        self._prepared = {at: e for at, e in self._prepared.items() if e.subtask != subtask or e.checkpoint_id <= to}

    def _end(self, number: int, state: RecoveryCheckpointState, **changes: Any) -> None:
        row = self._checkpoints[number]
        self._checkpoints[number] = replace(row, state=move(row.state, state), **changes)
