"""The bytes of a selection, copied together: what a filter on shared storage leaves, so that nobody reads them again.

A new subtask's runs of a channel lie scattered between those of others. Who spills them on another host would have to
fetch the whole channel once more, and so would everybody else who owns a part of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from cdr_core.errors import Unbalanced, Where
from cdr_core.flink.virtual_channel import Bytes, ChannelBytes, Part
from cdr_core.kernels import frames

Longs = npt.NDArray[np.int64]

WINDOW = 1024 * 1024
"""Bytes of a channel that are copied at once."""


def bytes_of_runs(channel: ChannelBytes, starts: Longs, ends: Longs) -> Iterator[Bytes]:
    """The bytes of ascending runs, one behind the other, in pieces of about a window."""
    first = 0
    while first < len(starts):
        base = int(starts[first])
        last = int(np.searchsorted(ends, base + WINDOW, side="right"))
        if last > first:
            under = _copied(channel, base, int(ends[last - 1]))
            piece = np.empty(int((ends[first:last] - starts[first:last]).sum()), np.uint8)
            frames.gather_runs(under, base, starts[first:last], ends[first:last], piece)
            yield piece
        else:
            last, end = first + 1, int(ends[first])
            yield from (_copied(channel, begin, min(begin + WINDOW, end)) for begin in range(base, end, WINDOW))
        first = last


def _copied(channel: ChannelBytes, begin: int, end: int) -> Bytes:
    piece = np.empty(end - begin, np.uint8)
    channel.copy(begin, end, piece)
    return piece


def as_channel(data: bytes, starts: Longs, ends: Longs, where: Where) -> tuple[ChannelBytes, Longs, Longs]:
    """Carried bytes as a channel that holds nothing else, and the runs' places in it."""
    lengths = ends - starts
    places = np.cumsum(lengths, dtype=np.int64)
    if len(data) != int(lengths.sum()):
        raise Unbalanced(f"{len(data)} bytes were carried of runs of {int(lengths.sum())}", where=where)
    part = Part(np.frombuffer(data, np.uint8), np.zeros(1, np.int64), np.array([len(data)], np.int64))
    return ChannelBytes((part,) if data else (), (), where), places - lengths, places
