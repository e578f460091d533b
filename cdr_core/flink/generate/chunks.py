"""A virtual channel cut the way Flink's network stack leaves it: sides first, then buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from cdr_core.flink.generate.elements import Batch
from cdr_core.flink.generate.pool import Bytes
from cdr_core.flink.metadata import Side

_EMPTY_CHANCE: Final = 1 / 16
"""Of an empty chunk in a batch: an open buffer that was drained when the barrier came."""
_TURNS: Final = 6
"""Into which the chunks of a batch are divided, about."""

_NOTHING: Final = np.zeros(0, np.uint8)


class Turn(NamedTuple):
    """Chunks that a channel writes at once, to one side's file."""

    side: Side
    chunks: list[memoryview]


def turns(batches: Iterable[Batch], cut: int | None, buffer: int, rng: np.random.Generator) -> Iterator[Turn]:
    """Chunks of at most ``buffer`` bytes: the first ``cut`` bytes as input state (``None``: all), the rest as output.

    Each side begins inside of a buffer and ends inside of one, so that lengths and bodies are cut anywhere. The chunks
    of a batch come in several turns, for others to write in between.
    """
    cutter = _Cutter(Side.INPUT if cut != 0 else Side.OUTPUT, buffer, rng)
    done = 0
    for batch in batches:
        at = 0
        if cut is not None and done < cut <= done + len(batch.data):
            at = cut - done
            yield from cutter.take(batch.data[:at], last=True)
            cutter = _Cutter(Side.OUTPUT, buffer, rng)
        done += len(batch.data)
        if at < len(batch.data):
            yield from cutter.take(batch.data[at:], batch.last)


class _Cutter:
    """Cuts the bytes of one side into chunks; what does not fill a buffer waits for more."""

    def __init__(self, side: Side, buffer: int, rng: np.random.Generator) -> None:
        self._side = side
        self._buffer = buffer
        self._rng = rng
        self._room = int(rng.integers(1, buffer + 1))
        self._rest = _NOTHING

    def take(self, data: Bytes, last: bool) -> Iterator[Turn]:
        whole = np.concatenate([self._rest, data]) if len(self._rest) else data
        view, bounds = whole.data, [0]
        if self._room <= len(whole):
            bounds += range(self._room, len(whole) + 1, self._buffer)
            self._room = self._buffer
        self._rest = whole[bounds[-1] :]
        if last and len(self._rest):
            bounds.append(len(whole))
        chunks = [view[begin:end] for begin, end in pairwise(bounds)]
        if self._rng.random() < _EMPTY_CHANCE:
            chunks.insert(int(self._rng.integers(0, len(chunks) + 1)), memoryview(b""))
        each = max(1, len(chunks) // _TURNS)
        for first in range(0, len(chunks), each):
            yield Turn(self._side, chunks[first : first + each])
