"""A job in recovery, in miniature: subtasks, their consumers, checkpoints, crashes, rescales, and the oracle.

The classes that drain, cut, ask, answer, collect, complete and go back are the shipped ones. Replaced are the disk
(objects and segments in memory), the database (rows in memory), the clock, and the sink (a list per file): what was
prepared up to the last complete checkpoint counts; a crash forgets the rest and goes on from that checkpoint.

A record is (origin channel, key, number). Its key decides its channel after a rescale, so the numbers of each
(origin, key) must come out in order, each exactly once, however often the job crashed or changed its shape.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from random import Random
from unittest.mock import patch

from cdr_core.drain.channel import Key
from cdr_core.drain.checkpoints import RecoveryCheckpoints
from cdr_core.drain.drainer import Drainer
from cdr_core.drain.remaining import Remaining, whole
from cdr_core.errors import CdrError, CheckpointsFailed, Fenced, JobFailed, StorageError
from cdr_core.metadata import RecoveryCheckpointState
from cdr_core.phases.drain import last_checkpoint
from cdr_core.phases.draining.cuts import read_cuts
from cdr_core.storage.columns import unpack_columns
from tests.drain.attempt import Attempt, Shape, Source, Surroundings, Task, remaining_in
from tests.drain.memory import Disk, Rows
from tests.drain.support import Lost, Part, bodies, frame, frames, memory_set, remaining_parts

RECORD = struct.Struct(">HHH")
KEYS = 5


@dataclass(frozen=True)
class Parts:
    """What a job is made of; a test may have one that is broken."""

    drainer: type[Drainer] = Drainer
    coordinator: type[RecoveryCheckpoints] = RecoveryCheckpoints


SHIPPED = Parts()


class World:
    """A job that can be driven step by step. ``draw`` makes every choice that is not the driver's."""

    def __init__(self, draw: Random, shape: Shape, records: int, parts: Parts = SHIPPED) -> None:
        self._draw, self._parts = draw, parts
        self.shape = shape
        self.expected: dict[tuple[int, int], list[int]] = {}
        self.committed: list[bytes] = []
        self.happened: Counter[str] = Counter()
        self.now = 0.0
        self.meanwhile: Callable[[], None] = lambda: None
        self.disk = Disk()
        self._recoveries = 0
        self._failed = False
        self._sources = [self._first_source(records) for _ in range(shape.subtasks)]

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """A driver that hears at once, on this world's disk, with its coordinator."""
        coordinator = patch("cdr_core.phases.draining.watch.RecoveryCheckpoints", self._parts.coordinator)
        with ExitStack() as stack:
            stack.enter_context(self.disk.mounted())
            stack.enter_context(coordinator)
            stack.enter_context(patch("cdr_core.phases.driver.HEARTBEAT_SECONDS", -1.0))
            yield

    # --- what may happen ---

    def begin(self) -> None:
        """A new recovery of the sources there are."""
        self._recoveries += 1
        self.rows = Rows()
        self._files: dict[str, list[bytes]] = {}
        self.attempt = self._new_attempt()

    def start(self) -> bool:
        """A task for a unit on which nobody works."""
        waiting = self.attempt.unattended
        if waiting:
            self.attempt.start(self._draw.choice(waiting))
        return bool(waiting)

    def start_twin(self) -> Task | None:
        """A second task for a subtask, because the first is thought lost."""
        attempt = self.attempt
        alone = [t for t in attempt.living if sum(other.unit == t.unit for other in attempt.living) == 1]
        return attempt.start(self._draw.choice(alone).unit) if alone else None

    def task(self) -> Task | None:
        living = self.attempt.living
        return self._draw.choice(living) if living else None

    def ask(self, aligned: float | None) -> None:
        self.rows.request(aligned)

    def look(self) -> None:
        """The driver's round. It may fail the attempt, which is only noted: somebody may be in the middle of a step."""
        if self._failed:
            return
        try:
            self.attempt.recorder.poll()
        except (JobFailed, CheckpointsFailed, StorageError) as error:
            self._judge_failure(error)
            self._failed = True

    def settle(self) -> None:
        """What a failed attempt leads to."""
        if self._failed:
            self.happened["attempts failed"] += 1
            self.crash()

    def cut(self, without: int = 0) -> None:
        """A checkpoint at once; ``without`` so many of the tasks it waits for answers that do not come."""
        self.look()
        self.ask(None)
        self.look()
        living = self.attempt.living
        for task in living[: len(living) - without]:
            task.answer()
        self.look()

    def abandon(self) -> None:
        """A checkpoint of which a task puts the markers in place, and then nothing."""
        self.ask(None)
        self.look()
        task, last = self.task(), self.rows.checkpoints("r")[-1:]
        if task is not None and last and last[0].state is RecoveryCheckpointState.TRIGGERED:
            task.abandon(last[0].checkpoint_id)

    def crash(self) -> None:
        """The driver and all tasks die. A driver that only seemed dead is fenced as soon as it looks."""
        self._failed = False
        self.attempt.close()
        old, self.attempt = self.attempt, self._new_attempt()
        if self._draw.random() < 0.3:
            with suppress(Fenced, JobFailed):
                old.recorder.poll()
                raise Lost("a driver went on after its successor had begun")

    def rescale(self, shape: Shape) -> None:
        """What the last complete checkpoint holds becomes the source of a job of another shape."""
        complete, left = self._last_complete()
        parts: list[list[Part]] = [[] for _ in range(shape.subtasks)]
        for source, remaining in zip(self._sources, left, strict=True):
            for (gate, _), data in _by_channel(source, remaining).items():
                for record in frames(data):
                    key = _unpack(record)[1]
                    target = key % (shape.subtasks * shape.channels)
                    self._append(parts[target // shape.channels], gate, target % shape.channels, frame(record))
        self.attempt.close()
        self._failed = False
        self._publish(complete)
        self.shape = shape
        self._sources = [_sealed(each) for each in parts]
        self.begin()

    def finish(self, bound: int) -> None:
        """Drain and consume to the end; more steps than this is a hang."""
        for step in range(bound):
            self.settle()
            if self.attempt.is_done:
                break
            while self.start():
                pass
            ended = [task for task in self.attempt.living if not self._go_on(task, step) and task.end()]
            if ended or step % 100 == 0:
                self.look()
        else:
            raise Lost(f"not done after {bound} steps")
        number, record = last_checkpoint(self.attempt.drive, self.attempt.drive.results(self.attempt.drive.phase))
        with self.attempt.drive.fenced() as transaction:
            record(transaction)
        self.attempt.close()
        if any(command.answered_at is None for command in self.rows.commands("r")):
            raise Lost("somebody asked for a checkpoint and was never answered")
        self._publish(number)
        self._judge()

    # --- inside ---

    def _go_on(self, task: Task, step: int) -> bool:
        return task.consume() if step % 2 else task.drain()

    def _new_attempt(self) -> Attempt:
        around = Surroundings(
            self.rows,
            f"/memory/{self._recoveries}",
            self.shape,
            self._sources,
            self._files,
            lambda: self.now,
            lambda: self.meanwhile(),
            self._parts.drainer,
        )
        return Attempt(around)

    def _judge_failure(self, error: CdrError) -> None:
        """An attempt may fail by a twin, by trouble, or by too many failed checkpoints; not just so."""
        if isinstance(error, JobFailed) and not self.attempt.twins:
            raise Lost(f"the driver refuses what nobody else has done: {error}")

    def _last_complete(self) -> tuple[int, list[Remaining | None]]:
        """Its number, and what is left of each source; 0 and everything, if there is none."""
        complete = [row for row in self.rows.checkpoints("r") if row.state is RecoveryCheckpointState.COMPLETED]
        if not complete:
            return 0, [whole(source.spill_set) for source in self._sources]
        cuts = read_cuts(complete[-1], self.attempt.drive.plan)
        left: list[Remaining | None] = []
        for subtask, source in enumerate(self._sources):
            body = cuts[subtask]["body"]
            columns = unpack_columns(body["columns"]) if body["columns"] else None
            left.append(None if body.get("finished") else remaining_in(columns) or whole(source.spill_set))
        return complete[-1].checkpoint_id, left

    def _publish(self, checkpoint: int) -> None:
        """As the commit does it: what was prepared up to a checkpoint, by number, then subtask."""
        for entry in self.rows.prepared("r"):
            if entry.checkpoint_id <= checkpoint:
                for file in json.loads(entry.manifest)["files"]:
                    self.committed += self._files[file["path"]]
        for row in self.rows.checkpoints("r"):
            self.happened[f"checkpoints {row.state.lower()}"] += 1

    def _judge(self) -> None:
        found: dict[tuple[int, int], list[int]] = {}
        for record in self.committed:
            origin, key, number = _unpack(record)
            found.setdefault((origin, key), []).append(number)
        for group in sorted(self.expected.keys() | found.keys()):
            want, got = self.expected.get(group, []), found.get(group, [])
            if want != got:
                raise Lost(f"origin and key {group}: expected {want}, found {got}")

    def _first_source(self, records: int) -> Source:
        parts: list[Part] = []
        first = 100 * len(self.expected)
        counts: dict[int, int] = {}
        for _ in range(self._draw.randint(0, records)):
            gate = self._draw.randrange(self.shape.gates)
            channel = self._draw.randrange(self.shape.channels)
            origin = first + gate * self.shape.channels + channel
            key = self._draw.randrange(KEYS)
            number = counts[origin] = counts.get(origin, 0) + 1
            self.expected.setdefault((origin, key), []).append(number)
            filler = bytes(self._draw.choice((0, 0, 1, 5)))
            self._append(parts, gate, channel, frame(RECORD.pack(origin, key, number) + filler))
        return _sealed(parts)

    def _append(self, parts: list[Part], gate: int, channel: int, data: bytes) -> None:
        """Like the spill's writer: a segment grows until the channel changes or it is large enough."""
        if parts and parts[-1][:2] == (gate, channel) and self._draw.random() < 0.7:
            parts[-1] = (gate, channel, parts[-1][2] + data)
        else:
            parts.append((gate, channel, data))


def _by_channel(source: Source, remaining: Remaining | None) -> dict[Key, bytes]:
    found: dict[Key, bytes] = {}
    if remaining is not None:
        for gate, channel, body in remaining_parts(remaining, source.spill_set, bodies(source.parts)):
            found[gate, channel] = found.get((gate, channel), b"") + body
    return found


def _unpack(record: bytes) -> tuple[int, int, int]:
    if len(record) < RECORD.size:
        raise Lost("a record came out that never went in")
    origin, key, number = RECORD.unpack_from(record)
    return origin, key, number


def _sealed(parts: Sequence[Part]) -> Source:
    return Source(parts, memory_set(parts))
