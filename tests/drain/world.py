"""A job in recovery, in miniature: subtasks, their consumers, checkpoints, crashes, rescales, and the oracle.

The classes that drain and cut are the shipped ones. Replaced are only the disk (segments in memory), the clock (none
is needed) and the sink (a list): whole records are *pending* until a checkpoint of all subtasks completes, then they
are *committed*; a crash forgets what is pending and goes on from the last complete checkpoint.

A record is (origin channel, key, number). Its key decides its channel after a rescale, so the numbers of each
(origin, key) must come out in order, each exactly once, however often the job crashed or changed its shape.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from cdr_core.drain.channel import Key
from cdr_core.drain.drainer import Drainer
from cdr_core.drain.pages import Page, PagePool
from cdr_core.drain.remaining import Remaining, whole
from cdr_core.drain.subtask import RecoveringSubtask
from cdr_core.spill.segments import SpillSet
from tests.drain.support import Consumer, Lost, MemoryReader, Part, bodies, frame, frames, memory_set, remaining_parts

RECORD = struct.Struct(">HHH")
KEYS = 5


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
    """What a subtask starts from: a sealed set and what is left of it."""

    parts: Sequence[Part]
    spill_set: SpillSet
    remaining: Remaining


class InterleavedPool(PagePool):
    """Lets somebody else act whenever the drainer asks for a page: it holds no lock there."""

    def __init__(self, pages: int, page_size: int, meanwhile: Callable[[], None]) -> None:
        super().__init__(pages, page_size)
        self._meanwhile = meanwhile

    def try_request(self) -> Page | None:
        self._meanwhile()
        return super().try_request()


class Running:
    """One subtask with its consumer."""

    def __init__(self, source: Source, shape: Shape, drainer: type[Drainer], meanwhile: Callable[[], None]) -> None:
        self.source, self._shape = source, shape
        self.pool = InterleavedPool(shape.pages, shape.page_size, meanwhile)
        self.consumer = Consumer()
        self.subtask = RecoveringSubtask(
            source.spill_set,
            MemoryReader(bodies(source.parts), lambda _: meanwhile()),
            [(gate, channel) for gate in range(shape.gates) for channel in range(shape.channels)],
            self.pool,
            source.remaining,
            drainer=drainer,
        )
        self.subtask.start(threaded=False)

    def consume(self) -> bool:
        """A selective reader takes one gate to its end before it looks at the next."""
        gates = None
        if self._shape.selective:
            gates = next(({gate} for gate in range(self._shape.gates) if not self.subtask.is_live(gate)), None)
        page = self.subtask.poll(0, gates)
        if page is not None:
            self.consumer.take(page)
        return page is not None

    def crash(self) -> None:
        self.subtask.close()
        if self.pool.in_use:
            raise Lost(f"{self.pool.in_use} pages were not given back")


class World:
    """A job that can be driven step by step. ``draw`` makes every choice that is not the driver's."""

    def __init__(self, draw: Random, shape: Shape, records: int, drainer: type[Drainer] = Drainer) -> None:
        self._draw, self._drainer = draw, drainer
        self.shape = shape
        self.expected: dict[tuple[int, int], list[int]] = {}
        self.committed: list[bytes] = []
        self.checkpoint = 0
        self.meanwhile: Callable[[], None] = lambda: None
        self.complete = [self._first_source(records) for _ in range(shape.subtasks)]
        self.running: list[Running] = []
        self.restart()

    def drain(self, index: int) -> bool:
        return self.running[index % len(self.running)].subtask.drainer.step(blocking=False)

    def consume(self, index: int) -> bool:
        return self.running[index % len(self.running)].consume()

    def cut(self, subtasks: int) -> None:
        """A checkpoint; with fewer than all subtasks it is given up."""
        self.checkpoint += 1
        sources = []
        for each in self.running[:subtasks]:
            cut = each.subtask.cut(self.checkpoint, each.consumer.half_records())
            sources.append(Source(each.source.parts, each.source.spill_set, cut.remaining))
        if len(sources) == len(self.running):
            self.complete = sources
            for each in self.running:
                self.committed += [record for _, record in each.consumer.records]
                each.consumer.records.clear()

    def abandon(self) -> None:
        """A checkpoint that is given up when only its markers are in place."""
        self.checkpoint += 1
        each = self._draw.choice(self.running)
        each.subtask.drainer.snapshot_and_insert_markers(self.checkpoint)

    def crash(self) -> None:
        for each in self.running:
            each.crash()
        self.restart()

    def restart(self) -> None:
        self.running = [Running(s, self.shape, self._drainer, self._meanwhile) for s in self.complete]

    def rescale(self, shape: Shape) -> None:
        """What the last complete checkpoint holds becomes the source of a job of another shape."""
        parts: list[list[Part]] = [[] for _ in range(shape.subtasks)]
        for source in self.complete:
            for (gate, _), data in self._by_channel(source).items():
                for record in frames(data):
                    key = _unpack(record)[1]
                    target = key % (shape.subtasks * shape.channels)
                    self._append(parts[target // shape.channels], gate, target % shape.channels, frame(record))
        for each in self.running:
            each.crash()
        self.shape = shape
        self.complete = [_sealed(each) for each in parts]
        self.restart()

    def finish(self, bound: int) -> None:
        """Drain and consume to the end; more steps than this is a hang."""
        for step in range(bound):
            busy = [each for each in self.running if not each.subtask.done]
            if not busy:
                break
            for each in busy:
                each.consume() if step % 2 else each.subtask.drainer.step(blocking=False)
        else:
            raise Lost(f"not done after {bound} steps")
        self.cut(len(self.running))
        for each in self.running:
            if not each.consumer.is_clean():
                raise Lost("the recovered data ends inside a record")
            each.crash()
        self._judge()

    def _judge(self) -> None:
        found: dict[tuple[int, int], list[int]] = {}
        for record in self.committed:
            origin, key, number = _unpack(record)
            found.setdefault((origin, key), []).append(number)
        for group in sorted(self.expected.keys() | found.keys()):
            want, got = self.expected.get(group, []), found.get(group, [])
            if want != got:
                raise Lost(f"origin and key {group}: expected {want}, found {got}")

    def _meanwhile(self) -> None:
        self.meanwhile()

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

    def _by_channel(self, source: Source) -> dict[Key, bytes]:
        found: dict[Key, bytes] = {}
        for gate, channel, body in remaining_parts(source.remaining, source.spill_set, bodies(source.parts)):
            found[gate, channel] = found.get((gate, channel), b"") + body
        return found


def _unpack(record: bytes) -> tuple[int, int, int]:
    if len(record) < RECORD.size:
        raise Lost("a record came out that never went in")
    origin, key, number = RECORD.unpack_from(record)
    return origin, key, number


def _sealed(parts: Sequence[Part]) -> Source:
    spill_set = memory_set(parts)
    return Source(parts, spill_set, whole(spill_set))
