"""A drain in miniature: tasks, their snapshots, recovery checkpoints, crashes, and the oracle.

Shipped are what a unit executes (take over, drain, cut, snapshot), the driver's recorder and watch, the schedule of
checkpoints, manifests, the way back and the end of a drain. Replaced are storage and database (in memory, with the
rules that the real ones keep), the clock, the spill's files and the sink.

A record is (line, number). Whatever happens, what is published holds each number of each line once, in order; every
file that a row or a snapshot names is closed; and a complete checkpoint's ledger counts what its files hold.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from cdr_core.audit.ledger import RECORDS
from cdr_core.drain.checkpoint_cuts import read_cuts
from cdr_core.drain.checkpoint_driver import DrainWatch
from cdr_core.drain.checkpoint_schedule import RecoveryCheckpoints
from cdr_core.drain.commit_setup import DRAINED
from cdr_core.drain.drain_state import DrainState
from cdr_core.drain.drain_unit import DrainUnit
from cdr_core.drain.resume import go_back
from cdr_core.drain.routed_delivery import RoutedSegments
from cdr_core.drain.snapshots import Cut, Snapshots
from cdr_core.drain.task import DrainTask
from cdr_core.errors import CheckpointsFailed, Corrupt, Fenced, JobFailed, StorageError
from cdr_core.metadata import (
    AT_END,
    PER_CHECKPOINT,
    Phase,
    RecoveryCheckpointState,
    RecoveryOptions,
    RecoverySettings,
)
from cdr_core.phases import drain
from cdr_core.planning.plan import PlanChannels, VirtualChannel
from cdr_core.runtime.driver import PhaseRun, Recorder
from cdr_core.runtime.phase_definition import Outcome
from cdr_core.runtime.unit_results import SpillResult
from cdr_core.runtime.unit_runner import Job
from cdr_core.runtime.units import SpillUnit, StoredColumns
from cdr_core.spill.buffer_pool import Buffers
from tests.drain.memory import Disk, Rows
from tests.drain.tasks import MemoryOutput, MemorySets, Task, Turns, made_segments

RECORD = struct.Struct(">HH")
NO_COLUMNS = StoredColumns("", "")
SETTINGS: Any = SimpleNamespace(
    checkpoint_during_recovery=True,
    checkpoint_interval=5.0,
    checkpoint_timeout=10.0,
    tolerable_failed_checkpoints=3,
    retained_checkpoints=1,
)


class Lost(AssertionError):
    """A record is missing, double or out of order, or a promise was not kept."""


@dataclass(frozen=True)
class Parts:
    """What the drain is made of; a test may have one that is broken."""

    task: type[DrainTask] = DrainTask
    state: type[DrainState] = DrainState
    snapshots: type[Snapshots] = Snapshots
    watch: type[DrainWatch] = DrainWatch
    checkpoints: type[RecoveryCheckpoints] = RecoveryCheckpoints
    routed: type[RoutedSegments] = RoutedSegments
    buffers: type[Buffers] = Buffers


SHIPPED = Parts()


class Publisher:
    """In the place of the thread that publishes: late, in order, and not at all after a crash."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: list[tuple[int, list[Any]]] = []

    def check(self) -> None:
        """Called at every look of the driver: some of what waits is published now."""
        while self._waiting and self._world.draws_publication():
            self._world.publish(*self._waiting.pop(0))

    def publish(self, number: int, entries: list[Any]) -> None:
        self._waiting.append((number, entries))


class World:
    """A drain that can be driven step by step. ``draw`` makes every choice that is not the schedule's."""

    def __init__(self, draw: Random, subtasks: int, records: int, parts: Parts = SHIPPED) -> None:
        self._draw, self._parts = draw, parts
        self.happened: Counter[str] = Counter()
        self.now = 0.0
        self.disk, self.rows, self.turns = Disk(), Rows(), Turns()
        self.disk.pause = self.turns.pause
        self.sets = MemorySets(self.turns, draw, self.happened, parts.routed, parts.buffers)
        self.closed: dict[str, list[bytes]] = {}
        self.published: list[str] = []
        self.per_checkpoint = draw.random() < 0.4
        self.plan = _plan(subtasks, draw.choice((1, 2, 3)))
        self.expected = {line: draw.randint(0, records) for line in range(int(self.plan.channels.line_first[-1]))}
        self._remade = Counter[int]()
        self._named = 0
        self._file_size = draw.choice((1, 20, 1 << 30))
        for subtask in range(subtasks):
            self._make_set(subtask)

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """The shipped modules, on this world's storage, sink and spill, with the parts under test."""
        parts, module = self._parts, "cdr_core.drain"
        with ExitStack() as stack:
            stack.enter_context(self.disk.mounted())
            for target, what in {
                "cdr_core.runtime.driver.HEARTBEAT_SECONDS": -1.0,
                "cdr_core.phases.drain._load": self.sets.load,
                "cdr_core.phases.drain.spill.execute": self._spill_again,
                "cdr_core.phases.drain.DrainTask": parts.task,
                "cdr_core.phases.drain.Snapshots": parts.snapshots,
                f"{module}.task.Snapshots": parts.snapshots,
                f"{module}.task.DrainState": parts.state,
                f"{module}.task.SegmentQueue": self.sets.queue,
                f"{module}.task.PlannedSource": lambda _: None,
                f"{module}.task.output_for": self._output,
                f"{module}.task.LISTEN_SECONDS": 0.0,
                f"{module}.checkpoint_driver.Snapshots": parts.snapshots,
                f"{module}.checkpoint_driver.RecoveryCheckpoints": parts.checkpoints,
                f"{module}.checkpoint_driver.publisher_of": self._publisher,
                f"{module}.checkpoint_driver.read_json": lambda _: {"files": []},
            }.items():
                stack.enter_context(patch(target, what))
            yield

    def begin(self) -> None:
        """A new attempt: go back, prepare the units, and nobody is at work yet."""
        epoch = self.rows.begin_attempt()
        options = RecoveryOptions(on_corrupt="fail", commit=PER_CHECKPOINT if self.per_checkpoint else AT_END)
        recovery: Any = SimpleNamespace(
            id="r", workspace="/memory", settings=RecoverySettings(), options=options, host_id=None
        )
        rows: Any = self.rows
        self._check_complete()
        with patch("cdr_core.drain.resume.require_no_unknown_commit", lambda *_: None):
            self.drive = _Drive(self.plan, rows, recovery, epoch)
            subtasks = range(len(self.plan.subtasks))
            cuts = go_back(self.drive, subtasks)
        self.units = {
            f"{subtask:05d}": DrainUnit(
                subtask, self._set_of(subtask), SpillUnit(subtask, (), 0, NO_COLUMNS, NO_COLUMNS), cuts.get(subtask)
            )
            for subtask in subtasks
        }
        self.job = Job(
            "drain", "r", epoch, "/memory", "", "none:", 0, 0, 0, 0, True, SETTINGS.checkpoint_interval, self._file_size
        )
        watch = self._parts.watch(self.drive, self.job, self.units, lambda: self.now)
        self.recorder = Recorder(self.drive, self.job, (len(self.units), None), lambda _: None, redo=False, watch=watch)
        self.tasks: list[Task] = []
        self._failed = False

    # --- what may happen ---

    @property
    def living(self) -> list[Task]:
        return [task for task in self.tasks if not task.over]

    def start(self, twin: bool = False) -> bool:
        """A task for a unit that is not finished: one on which nobody works, or a ``twin`` of one at work."""
        busy = {task.unit for task in self.living}
        waiting = [unit for unit in self.units if unit not in self.recorder.recorded and (unit in busy) == twin]
        if not waiting:
            return False
        unit = self._draw.choice(waiting)
        self._named += 1
        name = f"{unit}-{self._named}"
        self.tasks.append(Task(self.turns, self.disk, self.job, unit, self.units[unit], self.plan, name))
        return True

    def step(self) -> bool:
        """Some steps of one task."""
        living = self.living
        if not living:
            return False
        task = self._draw.choice(living)
        for _ in range(self._draw.choice((1, 2, 5, 20))):
            task.step()
        self._judge_failure(task)
        return True

    def ask(self, aligned: float | None) -> None:
        self.rows.request(aligned)

    def look(self) -> None:
        """The driver's round; trouble may fail the attempt, which then begins anew."""
        if self._failed:
            return
        try:
            self.recorder.poll()
        except (JobFailed, CheckpointsFailed, StorageError, Corrupt) as error:
            if isinstance(error, JobFailed) and not self.happened["twins"]:
                raise Lost(f"the driver refuses what no twin has done: {error}") from error
            self._failed = True

    def settle(self) -> None:
        if self._failed:
            self.happened["attempts failed"] += 1
            self.crash()

    def lose_task(self) -> None:
        if self.living:
            self._draw.choice(self.living).kill()

    def lose_set(self) -> None:
        self.sets.lost.add(self._set_of(self._draw.randrange(len(self.plan.subtasks))))

    def crash(self) -> None:
        """The driver and its tasks die; some of either may only seem dead for a while."""
        zombies = [task for task in self.living if self._draw.random() < 0.3]
        for task in self.living:
            if task not in zombies:
                task.kill()
        old = self.recorder
        self.begin()
        for task in zombies:
            for _ in range(self._draw.choice((0, 3, 10))):
                task.step()
            task.kill()
        if self._draw.random() < 0.3:
            with suppress(Fenced, JobFailed):
                old.poll()
                raise Lost("a driver went on after its successor had begun")

    def finish(self, bound: int) -> None:
        """Drain to the end; more steps than this is a hang."""
        for _ in range(bound):
            self.settle()
            if len(self.recorder.recorded) == len(self.units):
                break
            while self.start():
                pass
            for task in self.living:
                for _ in range(50):
                    task.step()
                self._judge_failure(task)
            self.look()
        else:
            raise Lost(f"not done after {bound} rounds")
        self._end()

    def _end(self) -> None:
        """The end of the drain, and what must be true then."""
        for task in self.living:
            task.kill()
        number, record = drain.last_checkpoint(self.drive)
        with self.drive.fenced() as transaction:
            record(transaction)
        self._check_complete()
        rows = [json.loads(entry.manifest) for entry in self.rows.prepared("r")]
        named = [file["path"] for row in rows for file in row["files"]]
        if not self.per_checkpoint and {row["checkpoint_id"] for row in rows} != {number}:
            raise Lost("rows of older checkpoints were left")
        if self.per_checkpoint and set(self.published) - set(named):
            raise Lost("something was published that no row names")
        if any(command.answered_at is None for command in self.rows.commands("r")):
            raise Lost("a request was never answered")
        self._judge(named)
        for row in self.rows.checkpoints("r"):
            self.happened[f"checkpoints {row.state.lower()}"] += 1

    def publish(self, number: int, entries: list[Any]) -> None:
        """As the proof of the commit does: what the checkpoint counts is what its rows hold."""
        row = next(row for row in self.rows.checkpoints("r") if row.checkpoint_id == number)
        stated = sum(exchange["records"] for exchange in (row.result or {})[DRAINED]["exchanges"])
        if stated != sum(each.records for each in self.rows.prepared("r") if each.checkpoint_id <= number):
            raise Lost(f"checkpoint {number} counts other records than its rows hold")
        paths = [file.path for entry in entries for file in entry.files]
        again = set(paths) & set(self.published)
        if again or len(paths) != len(set(paths)):
            raise Lost(f"published twice: {sorted(again)}")
        self.published += paths

    # --- inside ---

    def _publisher(self, _drive: PhaseRun) -> Publisher | None:
        return Publisher(self) if self.per_checkpoint else None

    def draws_publication(self) -> bool:
        return self._draw.random() < 0.6

    def _output(self, _target: str, state: DrainState, _subtask: int, name: str, *_: Any, **__: Any) -> MemoryOutput:
        return MemoryOutput(state, name, self.closed)

    def _spill_again(self, _job: Job, _plan: Any, unit: SpillUnit, _name: str) -> Outcome[SpillResult]:
        self.happened["sets made again"] += 1
        self._remade[unit.subtask] += 1
        return Outcome(0, 0, SpillResult(subtask=unit.subtask, manifest=self._make_set(unit.subtask), files=()))

    def _set_of(self, subtask: int) -> str:
        return f"set-{subtask}-{self._remade[subtask]}"

    def _make_set(self, subtask: int) -> str:
        channels = self.plan.channels
        lines = [line for line in self.expected if int(channels.subtask_of_lines(np.array([line]))[0]) == subtask]
        records = [(line, [RECORD.pack(line, number) for number in range(self.expected[line])]) for line in lines]
        manifest = self._set_of(subtask)
        self.sets.add(manifest, *made_segments(subtask, records, lambda: self._draw.choice((1, 2, 5, 9))))
        return manifest

    def _judge_failure(self, task: Task) -> None:
        error = task.failure
        if error is None or isinstance(error, (StorageError, Corrupt)):
            return
        if isinstance(error, JobFailed) and self.happened["twins"]:
            self.happened["tasks overtaken"] += 1
            task.failure = None
            return
        raise error

    def _check_complete(self) -> None:
        """The last complete checkpoint names closed files, and its ledger counts what is in them."""
        complete = self.rows.checkpoints("r", RecoveryCheckpointState.COMPLETED)
        if not complete:
            return
        plan: Any = self.plan
        self._check_cuts(read_cuts(complete[-1], plan))

    def _check_cuts(self, cuts: Mapping[int, Cut]) -> None:
        for subtask, cut in cuts.items():
            found: Counter[int] = Counter()
            for file in cut.files:
                if file.path not in self.closed:
                    raise Lost(f"a checkpoint names {file.path}, which was never closed")
                found.update(RECORD.unpack(record)[0] for record in self.closed[file.path])
            ledger = cut.ledger
            counted = dict(zip(ledger.lines.tolist(), ledger.sums[:, RECORDS].astype(int).tolist(), strict=True))
            if +Counter(counted) != +found:
                raise Lost(f"the cut of subtask {subtask} counts {counted}, its files hold {dict(found)}")

    def _judge(self, named: list[str]) -> None:
        got: dict[int, list[int]] = {line: [] for line in self.expected}
        for path in named:
            for record in self.closed[path]:
                line, number = RECORD.unpack(record)
                got[line].append(number)
        for line, count in self.expected.items():
            if got[line] != list(range(count)):
                raise Lost(f"line {line}: expected 0 to {count - 1}, found {got[line]}")
        self.happened["records"] += sum(self.expected.values())


class _Drive(PhaseRun):
    """With a plan at hand."""

    plan: Any = None

    def __init__(self, plan: Any, rows: Any, recovery: Any, epoch: int) -> None:
        super().__init__(rows, recovery, Phase.DRAIN, epoch, SETTINGS)
        self.plan = plan


def _plan(subtasks: int, ups: int) -> Any:
    """One exchange, in which every old channel may belong to all new subtasks."""
    channels = PlanChannels.of(
        VirtualChannel(0, up, down, up, 0, tuple(range(subtasks))) for up in range(ups) for down in (0, 1)
    )
    exchange = SimpleNamespace(name="x", gate=0, new_up=ups, downstream="op")
    owners = tuple(SimpleNamespace(operator="op", index=index) for index in range(subtasks))
    return SimpleNamespace(channels=channels, exchanges=(exchange,), subtasks=owners)
