"""Files of channel state that the drain prepared: read back, tallied, and joined where a subtask left several.

Unit: a new subtask. Flink takes one handle per channel, so a channel whose chunks lie in several files (one per
recovery checkpoint) is copied together; a subtask that left one file is read and left as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdr_core.audit.ledger import ChannelKey, Entry, Tally
from cdr_core.commit.committable import Committable, Piece, PreparedFile
from cdr_core.commit.sinks.checkpoint import ChannelFile, CheckpointSink
from cdr_core.drain.chunks import place_of
from cdr_core.errors import CorruptChannelState
from cdr_core.faults import reach
from cdr_core.flink.channel_state import LENGTH_SIZE
from cdr_core.flink.channel_writer import OwnedChannel, SubtaskSide, WrittenChannel, channel_handles
from cdr_core.flink.metadata import ChannelHandle, Offsets, RelativeFile, Side
from cdr_core.kernels import fingerprint, frames
from cdr_core.phases.spill import subtask_entry
from cdr_core.rescale.other_elements import kinds
from cdr_core.rescale.plan import Plan

Bytes = npt.NDArray[np.uint8]


def channel_units(plan: Plan, entries: Sequence[Committable], *, join: bool) -> dict[str, Any]:
    """One unit per new subtask with all that was prepared for it; ``join`` says whether several become one."""
    files: dict[int, list[PreparedFile]] = {number: [] for number in range(len(plan.subtasks))}
    for entry in sorted(entries, key=lambda each: each.checkpoint_id):
        files[entry.subtask] += entry.files
    return {
        f"channels-{subtask:05d}": {
            "kind": "channels",
            "subtask": subtask,
            "files": [file.to_json() for file in found],
            "join": join,
        }
        for subtask, found in files.items()
    }


def check_channels(
    plan: Plan, unit: Mapping[str, Any], sink: CheckpointSink, name: str
) -> tuple[list[Entry], PreparedFile | None]:
    """The ledger of the subtask from the bytes of its files, and the one file that its channels are in."""
    files = [PreparedFile.from_json(file) for file in unit["files"]]
    lines: dict[int, Entry] = {}
    with ExitStack() as stack:
        target = stack.enter_context(sink.channel_file(name)) if unit["join"] and len(files) > 1 else None
        for file in files:  # one at a time: a long drain leaves more of them than may be open
            with sink.open_file(file) as source:
                for piece in sorted(file.pieces, key=_in_order):
                    before = lines.get(piece.channel, subtask_entry(plan, unit["subtask"], piece.channel, Tally()))
                    for chunk in _chunks(source, piece):
                        before = before.then(_tallied(before.key, chunk))
                    lines[piece.channel] = before
                if target is not None:
                    _append(plan, unit["subtask"], target, file, source)
    if target is None:
        return list(lines.values()), files[0] if files else None
    assert target.prepared is not None
    reach("channels.joined")
    return list(lines.values()), replace(target.prepared, records=sum(file.records for file in files))


def _in_order(piece: Piece) -> tuple[int, bool]:
    """A channel's input comes before its output."""
    return piece.channel, piece.side != Side.INPUT


def _append(plan: Plan, subtask: int, target: ChannelFile, file: PreparedFile, source: pa.NativeFile) -> None:
    by_offset = sorted((offset, piece) for piece in file.pieces for offset in piece.offsets)
    for offset, piece in by_offset:
        _, side, channel = place_of(plan, piece.channel, plan.subtasks[subtask].index, Side(piece.side))
        target.append(OwnedChannel(str(piece.channel), side, channel), [_chunk(source, offset).data], 0)


def _chunks(source: pa.NativeFile, piece: Piece) -> Iterator[Bytes]:
    found = 0
    for offset in piece.offsets:
        chunk = _chunk(source, offset)
        found += LENGTH_SIZE + len(chunk)
        yield chunk
    if found != piece.size:
        raise CorruptChannelState(f"chunks of {found} bytes where {piece.size} were prepared")


def _chunk(source: pa.NativeFile, offset: int) -> Bytes:
    source.seek(offset)
    length = int.from_bytes(source.read(LENGTH_SIZE), "big", signed=True)
    return np.frombuffer(source.read(length), np.uint8)


def _tallied(key: ChannelKey, chunk: Bytes) -> Entry:
    """The ledger line of a chunk, which holds whole elements."""
    capacity = len(chunk) // (frames.LENGTH_BYTES + 1) + 1
    starts, ends, tags = np.empty(capacity, np.int64), np.empty(capacity, np.int64), np.empty(capacity, np.int8)
    count, used, outcome = frames.scan_frames(chunk, len(chunk), starts, ends, tags, len(chunk))
    if used != len(chunk) or outcome != frames.OK:
        raise CorruptChannelState("a prepared chunk does not hold whole elements", where=key.where)
    sums = np.zeros((1, fingerprint.FOLD_COLUMNS), np.uint64)
    lanes = np.where(tags[:count] <= frames.TAG_RECORD, 0, -1)
    fingerprint.fold_records(chunk, starts[:count], ends[:count], lanes, sums)
    others = kinds(np.bincount(tags[:count], minlength=frames.TAGS).tolist())
    return Entry(key, Tally.of_fold(sums[0]), others)


def handles_of(
    plan: Plan, files: Mapping[int, PreparedFile], version: int
) -> Mapping[SubtaskSide, tuple[ChannelHandle, ...]]:
    """The handles of all channels, by whose they are; ``files`` by new subtask."""
    written: list[WrittenChannel] = []
    for subtask, file in sorted(files.items()):
        delegate = RelativeFile(file.path, file.bytes)
        offsets: dict[OwnedChannel, list[int]] = defaultdict(list)
        sizes: dict[OwnedChannel, int] = defaultdict(int)
        for piece in file.pieces:
            owned = OwnedChannel(*place_of(plan, piece.channel, plan.subtasks[subtask].index, Side(piece.side)))
            offsets[owned] += piece.offsets
            sizes[owned] += piece.size
        written += [
            WrittenChannel(owned, delegate, Offsets.of(sorted(offsets[owned])), sizes[owned])
            for owned in sorted(offsets)
        ]
    return channel_handles(written, version)
