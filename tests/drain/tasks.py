"""Tasks that take turns: each runs the shipped ``drain.execute`` in a thread of its own, and only one thread moves.

A task stops before every operation on the storage and after every segment, until the schedule lets it go on, kills it,
or forgets it. So a schedule is a sequence of choices, and the same choices give the same run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from cdr_core.commit.committable import PreparedFile
from cdr_core.drain.state import DrainState
from cdr_core.errors import SpillLost
from cdr_core.phases import drain
from cdr_core.phases.draining.outputs import Output
from cdr_core.phases.results import SUFFIX
from cdr_core.phases.unit import Job
from cdr_core.spill.set_reader import Segment
from cdr_core.spill.sets import SpillSet
from cdr_core.storage import join
from cdr_core.storage.columns import encode_columns
from tests.drain.memory import Disk


class Killed(BaseException):
    """The task's process is gone."""


class Turns:
    """Who moves: a task while it has the turn, else the schedule."""

    def __init__(self) -> None:
        self._mine = threading.local()

    def pause(self) -> None:
        """In a task: give the turn back and wait for the next one. In the schedule's own thread: nothing."""
        task: Task | None = getattr(self._mine, "task", None)
        if task is not None:
            task.wait()

    def enter(self, task: Task) -> None:
        self._mine.task = task


class Task:
    """One try at a unit. ``over`` = it has ended, ``failure`` = by this error."""

    def __init__(self, turns: Turns, disk: Disk, job: Job, unit: str, definition: Any, plan: Any, name: str) -> None:
        self.unit, self.name, self.over = unit, name, False
        self.failure: BaseException | None = None
        self._killed = False
        self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._turns, self._disk, self._job, self._definition, self._plan = turns, disk, job, definition, plan
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Let it go on to where it stops next."""
        if not self.over:
            self._turn.release()
            self._back.acquire()

    def kill(self) -> None:
        self._killed = True
        while not self.over:
            self.step()

    def wait(self) -> None:
        self._back.release()
        self._turn.acquire()
        if self._killed:
            raise Killed

    def _run(self) -> None:
        self._turn.acquire()
        self._turns.enter(self)
        try:
            if not self._killed:
                outcome = drain.execute(self._job, self._plan, self._definition, self.name)
                value = {"records": outcome.records, "bytes": outcome.bytes, "detail": dict(outcome.detail)}
                data = encode_columns(value, outcome.columns)
                self._disk.create(join(self._job.results, f"{self.unit}{SUFFIX}"), data)
        except Killed:
            pass
        except BaseException as error:
            self.failure = error
        finally:
            self.over = True
            self._back.release()


class MemorySets:
    """Spill sets by the name of their manifest. ``lost`` ones fail when their next segment is read."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.sets: dict[str, tuple[SpillSet, list[Segment]]] = {}
        self.lost: set[str] = set()
        self._of: dict[int, str] = {}

    def add(self, manifest: str, spill_set: SpillSet, segments: list[Segment]) -> None:
        self.sets[manifest] = spill_set, segments
        self._of[id(spill_set)] = manifest

    def load(self, _plan: Any, manifest: str, _subtask: int) -> SpillSet:
        return self.sets[manifest][0]

    def queue(self, spill_set: SpillSet, numbers: list[int], _budget: int, *, positions: bool) -> Any:
        return self._queue(self._of[id(spill_set)], numbers)

    @contextmanager
    def _queue(self, manifest: str, numbers: list[int]) -> Iterator[Iterator[tuple[int, Segment]]]:
        yield self._segments(manifest, numbers)

    def _segments(self, manifest: str, numbers: list[int]) -> Iterator[tuple[int, Segment]]:
        for number in numbers:
            self._turns.pause()
            if manifest in self.lost:
                raise SpillLost(f"{manifest} is gone")
            yield number, self.sets[manifest][1][number]


class _File:
    """An open file of the sink. What is in it is lost unless it is closed."""

    def __init__(self, name: str, closed: dict[str, list[bytes]]) -> None:
        self.name, self._closed = name, closed
        self.lines: list[bytes] = []
        self.prepared: PreparedFile | None = None

    def __enter__(self) -> _File:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            assert self.name not in self._closed, "files are never written twice"
            self._closed[self.name] = self.lines
            self.prepared = PreparedFile(self.name, len(self.lines), sum(map(len, self.lines)), 0)


class MemoryOutput(Output[_File]):
    """Records of a subtask, as bytes, into files that exist once they are closed."""

    def __init__(self, state: DrainState, name: str, closed: dict[str, list[bytes]]) -> None:
        def make(file: str) -> AbstractContextManager[_File]:
            return _File(file, closed)

        super().__init__(state, name, make)

    def write(self, segment: Segment, skip: Any) -> None:
        elements = self.state.taken(segment, skip)
        for begin, end in zip(elements.starts.tolist(), elements.ends.tolist(), strict=True):
            self.opened().lines.append(elements.data[begin + 1 : end].tobytes())


def made_segments(
    subtask: int, records: list[tuple[int, list[bytes]]], sizes: Callable[[], int]
) -> tuple[SpillSet, list[Segment]]:
    """A set of (line, payloads) in order, in segments of so many elements each as ``sizes`` says."""
    flat = [(line, payload) for line, payloads in records for payload in payloads]
    position = dict.fromkeys((line for line, _ in records), 0)
    segments: list[Segment] = []
    columns: dict[str, list[int]] = {"line": [], "piece_elements": [], "piece_length": [], "length": []}
    first = [0]
    while flat:
        size = max(1, sizes())
        here, flat = flat[:size], flat[size:]
        pieces: list[tuple[int, list[bytes]]] = []
        for line, payload in here:
            if not pieces or pieces[-1][0] != line:
                pieces.append((line, []))
            pieces[-1][1].append((1 + len(payload)).to_bytes(4, "big") + b"\x01" + payload)
        bodies = [b"".join(frames) for _, frames in pieces]
        positions = []
        for line, frames in pieces:
            positions += range(position[line], position[line] + len(frames))
            position[line] += len(frames)
        columns["line"] += [line for line, _ in pieces]
        columns["piece_elements"] += [len(frames) for _, frames in pieces]
        columns["piece_length"] += [len(body) for body in bodies]
        columns["length"].append(sum(map(len, bodies)))
        first.append(len(columns["line"]))
        segments.append(
            Segment(
                np.frombuffer(b"".join(bodies), np.uint8),
                np.array([line for line, _ in pieces]),
                np.cumsum([len(body) for body in bodies]),
                np.array([len(frames) for _, frames in pieces]),
                np.array(positions, np.int64),
            )
        )
    arrays = {name: np.array(column, np.int64) for name, column in columns.items()}
    ledger: Any = SimpleNamespace(bytes=0)
    return SpillSet(subtask, (), {**arrays, "piece_first": np.array(first)}, ledger), segments
