"""Tasks that take turns: each runs the shipped ``drain.execute`` in a thread of its own, and only one thread moves.

A task stops before every operation on the storage and after every segment, until the schedule lets it go on, kills it,
or forgets it. So a schedule is a sequence of choices, and the same choices give the same run.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from cdr_core.commit.committable import PreparedFile
from cdr_core.drain.drain_state import DrainState
from cdr_core.drain.routed_delivery import RoutedSegments
from cdr_core.drain.subtask_output import Output
from cdr_core.errors import SpillLost
from cdr_core.phases import drain
from cdr_core.runtime.unit_results import SUFFIX
from cdr_core.runtime.unit_runner import Job
from cdr_core.spill.buffer_pool import Buffers
from cdr_core.spill.router import Routing
from cdr_core.spill.scratch_ring import Scratch
from cdr_core.spill.set_reader import Segment
from cdr_core.spill.spill_set import SpillSet
from cdr_core.storage import join
from cdr_core.storage.column_codec import encode_columns
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
                assert outcome is not None
                value = {
                    "records": outcome.records,
                    "bytes": outcome.bytes,
                    "detail": msgspec.to_builtins(outcome.result),
                }
                data = encode_columns(value, outcome.columns)
                self._disk.create(join(self._job.results, f"{self.unit}{SUFFIX}"), data)
        except Killed:
            pass
        except BaseException as error:
            self.failure = error
        finally:
            self.over = True
            self._back.release()


class MemoryScratch(Scratch):
    """Scratch disk in memory, of a few segments. ``forgets`` says whether it has lost what is asked for."""

    def __init__(self, capacity: int, forgets: Callable[[], bool]) -> None:
        super().__init__(Path("/memory"), capacity)
        self._bytes, self._forgets = np.zeros(capacity, np.uint8), forgets

    def write(self, offset: int, data: npt.NDArray[np.uint8]) -> None:
        self._bytes[offset : offset + len(data)] = data

    def read(self, offset: int, length: int) -> npt.NDArray[np.uint8]:
        return self._bytes[offset : offset + (0 if self._forgets() else length)].copy()


class MemorySets:
    """Spill sets by the name of their manifest. ``lost`` ones fail when their next segment is read.

    Segments come through the shipped routing: before the output takes one, the reader is so far ahead as ``draw`` says.
    """

    def __init__(
        self,
        turns: Turns,
        draw: Random,
        happened: Counter[str],
        routed: type[RoutedSegments],
        buffers: type[Buffers],
    ) -> None:
        self._turns, self._draw, self._happened = turns, draw, happened
        self._routed, self._buffers = routed, buffers
        self.sets: dict[str, tuple[SpillSet, list[Segment]]] = {}
        self.lost: set[str] = set()
        self._of: dict[int, str] = {}

    def add(self, manifest: str, spill_set: SpillSet, segments: list[Segment]) -> None:
        self.sets[manifest] = spill_set, segments
        self._of[id(spill_set)] = manifest

    def load(self, _plan: Any, manifest: str, _subtask: int) -> SpillSet:
        return self.sets[manifest][0]

    def queue(
        self, spill_set: SpillSet, numbers: list[int], _source: Any, _budget: int, scratch: Any, routing: Any, **_: Any
    ) -> Any:
        largest = max(int(spill_set.columns["length"].max(initial=1)), 1)
        scratch = MemoryScratch(self._draw.choice((1, 2, 4)) * largest, lambda: self._draw.random() < 0.02)
        manifest = self._of[id(spill_set)]

        def made(number: int, body: npt.NDArray[np.uint8]) -> Segment:
            return replace(self.sets[manifest][1][number], body=body)

        routed = self._routed(self._draw.choice((1, 2, 4)), scratch, routing, made)
        return self._queue(manifest, numbers, routed, routing)

    @contextmanager
    def _queue(self, *of: Any) -> Iterator[Iterator[tuple[int, Segment]]]:
        yield self._segments(*of)

    def _segments(
        self, manifest: str, numbers: list[int], routed: RoutedSegments, routing: Routing
    ) -> Iterator[tuple[int, Segment]]:
        waiting, buffers, taken = list(numbers), self._buffers(), 0
        while taken < len(numbers):
            self._turns.pause()
            is_fetched = self._draw.random() < 0.7
            for _ in range(self._draw.choice((0, 1, 3, 9))):
                if waiting and routed.has_room(self._length(manifest, waiting[0]), is_fetched=is_fetched):
                    number = waiting.pop(0)
                    routed.add(number, self._loaded(manifest, number, buffers))
            if not routed.waiting:
                continue
            number, segment = routed.take()
            if segment is None:
                self._happened["scratch lost"] += 1
                segment = self._loaded(manifest, number, buffers)
            taken += 1
            yield number, segment
        self._happened["segments spilled and replayed"] += routing.spilled > 0

    def _length(self, manifest: str, number: int) -> int:
        return len(self.sets[manifest][1][number].body)

    def _loaded(self, manifest: str, number: int, buffers: Buffers) -> Segment:
        if manifest in self.lost:
            raise SpillLost(f"{manifest} is gone")
        body = self.sets[manifest][1][number].body.tobytes()

        def fill(target: memoryview) -> None:
            target[:] = body

        return replace(self.sets[manifest][1][number], body=buffers.filled(len(body), fill))


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
        positions: list[Any] = []
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
