"""One attempt at the drain of a job in miniature: the shipped side of the driver, and tasks that answer as shipped.

Shipped are recorder, watch, recovery checkpoints, mailbox, the way back to the last complete checkpoint, the task's
answers, and everything that drains and cuts. Replaced are clock, storage, database and sink.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from cdr_core.commit.committable import PreparedFile
from cdr_core.drain.drainer import Drainer
from cdr_core.drain.pages import Page, PagePool
from cdr_core.drain.remaining import Remaining, Slice, whole
from cdr_core.drain.subtask import RecoveringSubtask
from cdr_core.errors import Declined, JobFailed
from cdr_core.metadata import Phase
from cdr_core.phases.draining.answering import Answering
from cdr_core.phases.draining.mailbox import NOTHING_SAID, Mailbox, cut_body
from cdr_core.phases.draining.resume import go_back, situation
from cdr_core.phases.draining.task import find_base
from cdr_core.phases.draining.watch import DrainWatch
from cdr_core.phases.driver import Drive, Recorder
from cdr_core.phases.results import SUFFIX
from cdr_core.phases.unit import Job
from cdr_core.spill.segments import SpillSet
from cdr_core.storage import join
from cdr_core.storage.columns import Columns, pack_columns, write_columns
from tests.drain.memory import Rows
from tests.drain.support import Consumer, Lost, MemoryReader, Part, bodies

SETTINGS: Any = SimpleNamespace(
    checkpoint_during_recovery=True,
    checkpoint_interval=5.0,
    checkpoint_timeout=10.0,
    tolerable_failed_checkpoints=3,
    retained_checkpoints=1,
)


@dataclass(frozen=True)
class Shape:
    """How many subtasks there are, the channels of each, and their pages."""

    subtasks: int
    gates: int
    channels: int
    pages: int
    page_size: int
    selective: bool


@dataclass(frozen=True)
class Source:
    """The sealed set of a subtask."""

    parts: Sequence[Part]
    spill_set: SpillSet


@dataclass(frozen=True)
class Surroundings:
    """What an attempt finds: ``files`` is the sink, ``meanwhile`` lets somebody else act between two critical sections
    of a drainer, ``now`` is the clock.
    """

    rows: Rows
    root: str
    shape: Shape
    sources: Sequence[Source]
    files: dict[str, list[bytes]]
    now: Callable[[], float]
    meanwhile: Callable[[], None]
    drainer: type[Drainer]


class Sink(Consumer):
    """A consumer whose whole records become files."""

    def __init__(self, name: str, files: dict[str, list[bytes]]) -> None:
        super().__init__()
        self._name, self._files = name, files
        self._closed: tuple[PreparedFile, ...] = ()
        self._count = 0

    def cut(self) -> tuple[Slice, ...]:
        if self.records:
            path = f"{self._name}-{self._count}"
            self._count += 1
            self._files[path] = [record for _, record in self.records]
            self._closed += (PreparedFile(path, len(self.records), 0, 0),)
            self.records.clear()
        return self.half_records()

    def take_files(self) -> tuple[PreparedFile, ...]:
        files, self._closed = self._closed, ()
        return files

    def keep_files(self, files: tuple[PreparedFile, ...]) -> None:
        self._closed = files + self._closed


class InterleavedPool(PagePool):
    """Lets somebody else act whenever the drainer asks for a page: it holds no lock there."""

    def __init__(self, pages: int, page_size: int, meanwhile: Callable[[], None]) -> None:
        super().__init__(pages, page_size)
        self._meanwhile = meanwhile

    def try_request(self) -> Page | None:
        self._meanwhile()
        return super().try_request()


class Task:
    """One task of a subtask, from where its last answered cut left off to its result."""

    def __init__(self, around: Surroundings, job: Job, unit: str, given: Mapping[str, Any], name: str) -> None:
        self.unit, self._job, self._shape = unit, job, around.shape
        self.number: int = given["subtask"]
        self._manifest = given["manifest"]
        source = around.sources[self.number]
        self._mailbox = Mailbox(job.directory)
        self._mailbox.start(unit)
        base = find_base(self._mailbox, unit, given["base"])
        self.over = self.lost = False
        self.pool = InterleavedPool(around.shape.pages, around.shape.page_size, around.meanwhile)
        self.sink = Sink(name, around.files)
        self._answering = Answering(self._mailbox, unit, self.number, name, base.position, base.checkpoint)
        self.subtask = RecoveringSubtask(
            source.spill_set,
            MemoryReader(bodies(source.parts), lambda _: around.meanwhile()),
            [(gate, channel) for gate in range(self._shape.gates) for channel in range(self._shape.channels)],
            self.pool,
            remaining_in(base.columns) or whole(source.spill_set),
            clock=around.now,
            drainer=around.drainer,
        )
        self.subtask.start(threaded=False)

    def drain(self) -> bool:
        return not self.over and self.subtask.drainer.step(blocking=False)

    def consume(self) -> bool:
        """A selective reader takes one gate to its end before it looks at the next."""
        if self.over:
            return False
        gates = None
        if self._shape.selective:
            gates = next(({gate} for gate in range(self._shape.gates) if not self.subtask.is_live(gate)), None)
        page = self.subtask.poll(0, gates)
        if page is not None:
            self.sink.take(page)
        return page is not None

    def answer(self) -> None:
        """Look for requests and answer, unless it is done; a task that finds another's answer in its place dies."""
        if self.over or self.subtask.done:
            return
        self._answering.listen(self.subtask)
        due = self.subtask.due()
        try:
            self._answering.answer(self.subtask, self.sink, self._body)
        except JobFailed:
            self.over = self.lost = True
        if due and not self.over:
            given = self._mailbox.given(max(due), self.unit)
            if given.reason is not None:
                raise Declined(given.reason)

    def abandon(self, checkpoint: int) -> None:
        """A checkpoint of which only the markers are in place, and whose answer never comes."""
        if not self.over and not self.subtask.done:
            self._answering.listen(self.subtask)
            self.subtask.drainer.snapshot_and_insert_markers(checkpoint)
            self.subtask._requests.settle(checkpoint)

    def end(self) -> bool:
        """Leave the result, if everything is consumed. Of two tasks the first one's counts."""
        if self.over or not self.subtask.done:
            return False
        self.sink.cut()
        if not self.sink.is_clean():
            raise Lost("the recovered data ends inside a record")
        files = [file.to_json() for file in self.sink.take_files()]
        after = {"after": self._answering.position, "resumed_from": "", "records_here": 0}
        left = {"files": files, "manifest": self._manifest, "said": dict(NOTHING_SAID)}
        result = {"records": 0, "bytes": 0, "detail": {"subtask": self.number, **after, **left}}
        write_columns(join(self._job.results, f"{self.unit}{SUFFIX}"), {}, result)
        self.over = True
        return True

    def close(self) -> None:
        self.over = True
        self.subtask.close()
        if self.pool.in_use:
            raise Lost(f"{self.pool.in_use} pages were not given back")

    def _body(self, remaining: Remaining, files: Sequence[PreparedFile]) -> dict[str, Any]:
        told = np.frombuffer(json.dumps(remaining.to_json()).encode(), np.uint8)
        return cut_body([file.to_json() for file in files], self._manifest, columns=pack_columns({"remaining": told}))


def remaining_in(columns: Columns | None) -> Remaining | None:
    """What a cut of the tasks here left; ``None`` = it was made before anything was delivered."""
    return None if columns is None else Remaining.from_json(json.loads(columns["remaining"].tobytes()))


class PlannedDrive(Drive):
    """Without a plan: only cuts of earlier versions need one."""

    plan: Any = None


class Attempt:
    """A driver and its tasks. ``twins`` says whether two tasks of one subtask ever lived at once."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        epoch = around.rows.begin_attempt()
        rows: Any = around.rows
        recovery: Any = SimpleNamespace(id="r", workspace=around.root, settings={}, options={}, host_id=None)
        self.drive = PlannedDrive(rows, recovery, Phase.DRAIN, epoch, SETTINGS)
        self.job = Job("drain", "r", epoch, around.root, "", "", 0, 0, 0, 0, True)
        cuts = go_back(self.drive, range(len(around.sources)))
        self._units = {
            f"{subtask:05d}": {"subtask": subtask, "manifest": f"set-{subtask}", "base": cuts.get(subtask)}
            for subtask in range(len(around.sources))
        }
        watch = DrainWatch(self.drive, self.job, self._units, situation(self.drive, self._units), around.now)
        total = len(self._units), None
        self.recorder = Recorder(self.drive, self.job, total, lambda _: None, redo=False, watch=watch)
        self.tasks: list[Task] = []
        self.twins = False
        self._named = 0

    @property
    def living(self) -> list[Task]:
        return [task for task in self.tasks if not task.over]

    @property
    def unattended(self) -> list[str]:
        """Units that are not finished and that nobody works on."""
        busy = {task.unit for task in self.living}
        return [unit for unit in self._units if unit not in self.recorder.recorded and unit not in busy]

    @property
    def is_done(self) -> bool:
        return len(self.recorder.recorded) == len(self._units)

    def start(self, unit: str) -> Task:
        self._named += 1
        self.twins |= any(task.unit == unit and not task.lost for task in self.tasks)
        name = f"{unit}-e{self.drive.epoch}t{self._named}"
        self.tasks.append(Task(self._around, self.job, unit, self._units[unit], name))
        return self.tasks[-1]

    def lose(self, task: Task) -> None:
        """It is dead; somebody else will start again."""
        task.lost = True
        task.close()

    def close(self) -> None:
        for task in self.tasks:
            task.close()
