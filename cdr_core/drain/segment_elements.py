"""The elements of a spill segment: framed, with whose they are, and without those that were delivered before."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cdr_core.errors import CorruptChannelState, Where
from cdr_core.kernels import channel_batches, fingerprint, frames
from cdr_core.planning.plan import Plan
from cdr_core.spill.set_reader import Segment

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class SegmentElements:
    """Element i is ``data[starts[i]:ends[i]]``, the tag first. Those of piece p, which is of line ``lines[p]``, are
    ``first[p]`` to ``first[p + 1]``. ``fingerprints`` holds 16 bytes for each element once they were tallied.
    """

    data: Bytes
    starts: Longs
    ends: Longs
    tags: npt.NDArray[np.int8]
    positions: Longs
    lines: Longs
    first: Longs
    fingerprints: Bytes = field(default_factory=lambda: fingerprint.NO_FINGERPRINTS)

    @property
    def records(self) -> Flags:
        return self.tags <= frames.TAG_RECORD

    @property
    def piece(self) -> Longs:
        """The piece of each element."""
        return np.repeat(np.arange(len(self.lines)), np.diff(self.first))

    def only(self, chosen: Flags) -> SegmentElements:
        """Some of the elements."""
        counts = np.append(0, np.cumsum(chosen))
        positions = self.positions[chosen] if len(self.positions) else self.positions
        fingerprints = self.fingerprints.reshape(-1, fingerprint.FINGERPRINT_BYTES)
        return SegmentElements(
            self.data,
            self.starts[chosen],
            self.ends[chosen],
            self.tags[chosen],
            positions,
            self.lines,
            counts[self.first],
            fingerprints[chosen].ravel() if len(fingerprints) else self.fingerprints,
        )


def elements_of(plan: Plan, segment: Segment, skip: Longs | None = None) -> SegmentElements:
    """The elements of a segment, which holds exactly those that it was sealed with, or is damaged.

    ``skip``: how many elements at the head of each piece were delivered before.
    """
    count = int(segment.elements.sum())
    starts, ends, tags = np.empty(count + 1, np.int64), np.empty(count + 1, np.int64), np.empty(count + 1, np.int8)
    first = np.zeros(len(segment.lines) + 1, np.int64)
    most = len(segment.body) // frames.SMALLEST_FRAME + 1
    if most > count:  # a damaged segment may hold more frames than it should
        starts, ends, tags = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int8)
    bad = channel_batches.scan_channels(segment.body, segment.ends, starts, ends, tags, first)
    wrong = np.flatnonzero(np.diff(first) != segment.elements) if bad < 0 else np.array([bad])
    if len(wrong):
        raise unlike_sealed(plan, int(segment.lines[wrong[0]]))
    found = SegmentElements(
        segment.body, starts[:count], ends[:count], tags[:count], segment.positions, segment.lines, first
    )
    if skip is None or not skip.any():
        return found
    return found.only(np.arange(count) - np.repeat(first[:-1], np.diff(first)) >= np.repeat(skip, np.diff(first)))


def unlike_sealed(plan: Plan, line: int) -> CorruptChannelState:
    """The error for a segment with other elements than those that it was sealed with."""
    channel = plan.channels[int(plan.channels.of_lines(np.array([line]))[0])]
    exchange = plan.exchanges[channel.exchange]
    return CorruptChannelState(
        "a spill segment does not hold the elements it was sealed with",
        where=Where(exchange=exchange.name, subtask=channel.down, gate=exchange.gate, channel=channel.up),
    )
