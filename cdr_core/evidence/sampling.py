"""The first records of some channels of an exchange: enough to judge a job spec, whatever the checkpoint's size."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from cdr_core.channels.channel_source import open_planned, place, sides, stream_of
from cdr_core.channels.remote_state import fetching
from cdr_core.errors import CdrError
from cdr_core.flink.channel_state import ChannelSlice
from cdr_core.flink.metadata import Offsets
from cdr_core.flink.virtual_channel import ChannelBytes, Part
from cdr_core.kernels import frames
from cdr_core.planning.plan import Plan

MOST_CHANNELS: Final = 256
"""Channels that are sampled, spread evenly over all."""
SAMPLE_BYTES: Final = 16 * 1024 * 1024
"""Bytes that are sampled, shared by the channels."""
SMALLEST_SHARE: Final = 64 * 1024
LARGEST_RECORD: Final = SAMPLE_BYTES
"""A first record that is longer than a channel's share is read up to this size."""
MOST_RECORDS: Final = 65_536
"""Records of one channel: tiny ones would make the arrays larger than the bytes."""

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ChannelSample:
    """The first records of a channel: value i is ``data[starts[i]:ends[i]]``.

    ``whole``: these are all records of the channel. Damage and missing files end a sample, and it is not ``sound``:
    the phase that reads the channel reports what is wrong.
    """

    number: int
    down: int
    data: npt.NDArray[np.uint8]
    starts: Longs
    ends: Longs
    whole: bool
    sound: bool = True


def sample_channels(plan: Plan, numbers: Longs) -> Iterator[ChannelSample]:
    """Yield samples of some of these channels, which have data. A channel that cannot be opened gives an empty one."""
    chosen = numbers[np.linspace(0, len(numbers) - 1, min(len(numbers), MOST_CHANNELS)).astype(int)].tolist()
    share = max(SAMPLE_BYTES // max(len(chosen), 1), SMALLEST_SHARE)
    with tempfile.TemporaryDirectory(prefix="cdr-sample-") as scratch, fetching(Path(scratch)):
        looked = 0
        for number in chosen:
            sample = _sample(plan, number, share if looked < 4 * SAMPLE_BYTES else 0)
            looked += len(sample.data)
            yield sample


def _sample(plan: Plan, number: int, share: int) -> ChannelSample:
    down, nothing = plan.channels[number].down, np.zeros(0, np.int64)
    if not share:
        return ChannelSample(number, down, np.zeros(0, np.uint8), nothing, nothing, whole=False)
    with suppress(CdrError):
        channel, cut = _beginning(plan, number, share)
        data = np.empty(min(channel.size, share), np.uint8)
        channel.copy(0, len(data), data)
        capacity = min(MOST_RECORDS, len(data) // frames.SMALLEST_FRAME + 1)
        starts, ends, tags = np.empty(capacity, np.int64), np.empty(capacity, np.int64), np.empty(capacity, np.int8)
        count, used, outcome = frames.scan_frames(data, len(data), starts, ends, tags, np.iinfo(np.int64).max)
        wanted = 0 if np.any(tags[:count] <= frames.TAG_RECORD) else _next_end(data, used)
        if share < wanted <= LARGEST_RECORD:
            return _sample(plan, number, wanted)
        times, values = np.empty(count, np.int64), np.empty(count, np.int64)
        frames.element_times(data, starts[:count], tags[:count], times, values)
        records = tags[:count] <= frames.TAG_RECORD
        whole = not cut and used == channel.size
        sound = outcome in (frames.OK, frames.FULL)
        return ChannelSample(number, down, data, values[records], ends[:count][records], whole and sound, sound)
    return ChannelSample(number, down, np.zeros(0, np.uint8), nothing, nothing, whole=False, sound=False)


def _next_end(data: npt.NDArray[np.uint8], at: int) -> int:
    """Return where the frame at a place ends; 0 where not even its length is there."""
    length = data[at : at + frames.LENGTH_BYTES]
    whole = len(length) == frames.LENGTH_BYTES
    return at + frames.LENGTH_BYTES + int.from_bytes(length.tobytes(), "big", signed=True) if whole else 0


def _beginning(plan: Plan, number: int, share: int) -> tuple[ChannelBytes, bool]:
    """Return about the first ``share`` bytes of a channel, and whether it has more."""
    inputs, outputs = sides(plan, number)
    received, cut = _chunks(plan, inputs, share)
    rest = share - sum(part.size for part in received)
    sent, cut_too = ((), outputs is not None) if cut or rest <= 0 else _chunks(plan, outputs, rest)
    return ChannelBytes(received, sent, place(plan, number)), cut or cut_too


def _chunks(plan: Plan, piece: ChannelSlice | None, share: int) -> tuple[tuple[Part, ...], bool]:
    if piece is None:
        return (), False
    offsets = piece.offsets.numpy()
    mean = max(piece.size // max(len(offsets), 1), 1)
    few = replace(piece, offsets=Offsets.of(offsets[: share // mean + 1]))
    location = open_planned(plan.checkpoint, plan.metadata_sha256).resolve(piece.delegate)
    stream = stream_of(plan, few.offsets.numpy(), location, piece.where(plan.checkpoint))
    return stream.parts(*stream.extents(few.offsets)), len(few.offsets) < len(offsets)
