"""Operator state at another parallelism: every new subtask has one file with its share of every state.

A state is *split* (its elements are dealt out), *union* (every subtask gets all elements) or *broadcast* (every subtask
has the same copy). When Flink restores at the parallelism it finds in ``_metadata``, it leaves split and broadcast
states where they are, but gives each subtask the union state of all of them. So the parts of a union state are written
once, each in one new subtask: written into all, they would come back as many times.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from cdr_core.errors import CorruptMetadata, Refused, Where
from cdr_core.flink.metadata import (
    EmptySegment,
    FinishedSubtask,
    MergedOperatorStateHandle,
    NamedState,
    Offsets,
    OperatorState,
    OperatorStateHandle,
)
from cdr_core.flink.metadata.operators import MODE_BROADCAST, MODE_UNION
from cdr_core.flink.state.headers import Head, merge_heads
from cdr_core.flink.state.streams import Positions, Read, Stream, Write, ends_of, name_of, runs

LONGEST_HEAD: Final = 16 << 20
"""Bytes; the head of a file is read into memory."""

_Handle = OperatorStateHandle | MergedOperatorStateHandle


@dataclass(frozen=True, slots=True)
class _Part:
    """Some elements of a state, in one old subtask's file, in their order."""

    stream: Stream
    starts: Positions
    ends: Positions

    def __getitem__(self, share: slice) -> _Part:
        return _Part(self.stream, self.starts[share], self.ends[share])

    def chunks(self) -> Iterator[bytes]:
        for start, end in runs(self.starts, self.ends):
            yield from self.stream.chunks(start, end)


@dataclass(frozen=True, slots=True)
class _Share:
    """The part of one state that one new subtask gets."""

    name: str
    mode: int
    parts: tuple[_Part, ...]

    def lengths(self) -> Positions:
        return np.concatenate([np.empty(0, np.int64), *(part.ends - part.starts for part in self.parts)])


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """The elements of each new subtask. ``shares`` has its states, none where the operator has no state."""

    operator_id: str
    head: bytes
    shares: tuple[tuple[_Share, ...], ...]

    @classmethod
    def of(cls, operator: OperatorState, parallelism: int, read: Read) -> OperatorPlan:
        """Plan the redistribution; only the heads of the files are read."""
        sources = [
            _Source(subtask.index, handle, Where(operator=operator.label, subtask=subtask.index), read)
            for subtask in sorted(operator.subtasks, key=lambda each: each.index)
            if not isinstance(subtask, FinishedSubtask)
            and isinstance(handle := subtask.managed_operator, _Handle)
            and not isinstance(handle.delegate, EmptySegment)
        ]
        if not sources:
            return cls(operator.operator_id, b"", ((),) * parallelism)
        head = merge_heads([source.head() for source in sources])
        dealt = [_deal(name, mode, sources, operator.parallelism, parallelism) for name, mode in _states(sources)]
        balanced = _balance(dealt, parallelism)
        return cls(operator.operator_id, head, tuple(zip(*balanced, strict=True)) if dealt else ((),) * parallelism)

    def write(self, index: int, write: Write) -> OperatorStateHandle | None:
        """The handle of a new subtask, its bytes written; ``None`` where the operator has no such state."""
        if not self.head:
            return None
        shares, at, states = self.shares[index], len(self.head), []
        for share in shares:
            lengths = share.lengths()
            offsets = at + np.cumsum(lengths) - lengths
            states.append(NamedState(share.name, share.mode, Offsets.of(offsets)))
            at += int(lengths.sum())
        contents = (part.chunks() for share in shares for part in share.parts)
        chunks = itertools.chain([self.head], itertools.chain.from_iterable(contents))
        name = name_of(self.operator_id, "operator", index, len(self.shares))
        return OperatorStateHandle(tuple(states), write(name, chunks))


class _Source:
    """The operator state of one old subtask."""

    def __init__(self, index: int, handle: _Handle, where: Where, read: Read) -> None:
        self.index = index
        self.handle = handle
        self.where = where
        self.stream = Stream(handle.delegate, read, where)
        self._starts = np.concatenate([np.empty(0, np.int64), *(state.offsets.numpy() for state in handle.states)])
        if len(self._starts) and not 0 <= self._starts.min() <= self._starts.max() <= self.stream.size:
            raise self.stream.corrupt(f"an element starts outside of its {self.stream.size} bytes")
        self._borders = np.append(np.sort(self._starts), self.stream.size)

    def head(self) -> Head:
        """All before the first element; where there is none, all there is."""
        end = int(self._starts.min()) if len(self._starts) else self.stream.size
        if end > LONGEST_HEAD:
            raise Refused(f"the head of a file of operator state has {end} bytes", where=self.where)
        return Head(self.stream.all(0, end), self.handle.states, self.where)

    def part(self, name: str) -> _Part | None:
        for state in self.handle.states:
            if state.name == name:
                starts = state.offsets.numpy()
                return _Part(self.stream, starts, ends_of(starts, self._borders))
        return None


def _states(sources: list[_Source]) -> list[tuple[str, int]]:
    """Return name and mode of every state, in the order in which they are found."""
    found: dict[str, int] = {}
    for source in sources:
        for state in source.handle.states:
            if found.setdefault(state.name, state.mode) != state.mode:
                raise CorruptMetadata(f"the state {state.name!r} is distributed in two ways", where=source.where)
    return list(found.items())


def _deal(name: str, mode: int, sources: list[_Source], old: int, new: int) -> tuple[str, int, list[list[_Part]]]:
    """Return the parts of one state for each new subtask."""
    parts = [(source.index, part) for source in sources if (part := source.part(name)) is not None]
    if mode == MODE_BROADCAST:
        return name, mode, [[parts[index % len(parts)][1]] for index in range(new)]
    if mode == MODE_UNION:  # each once, in their old order; Flink gives all of them to every subtask
        return name, mode, [[part for at, part in parts if at * new // old == index] for index in range(new)]
    return name, mode, _split([part for _, part in parts], new)


def _split(parts: list[_Part], new: int) -> list[list[_Part]]:
    """Return elements in equal shares, in their order; the first ones get what is left over, as Flink deals them."""
    total = sum(len(part.starts) for part in parts)
    borders = [index * (total // new) + min(index, total % new) for index in range(new + 1)]
    begins = list(itertools.accumulate((len(part.starts) for part in parts), initial=0))
    return [
        [
            part[max(first - begin, 0) : last - begin]
            for part, begin in zip(parts, begins, strict=False)
            if begin < last and first < begin + len(part.starts)
        ]
        for first, last in itertools.pairwise(borders)
    ]


def _balance(dealt: list[tuple[str, int, list[list[_Part]]]], new: int) -> list[list[_Share]]:
    """Return per state the shares of all new subtasks. Remainders of split states go to different subtasks in turn."""
    turn, result = 0, []
    for name, mode, shares in dealt:
        shift = 0
        if mode not in (MODE_BROADCAST, MODE_UNION):
            total = sum(len(part.starts) for share in shares for part in share)
            shift, turn = turn, (turn + total) % new
        result.append([_Share(name, mode, tuple(shares[(index - shift) % new])) for index in range(new)])
    return result
