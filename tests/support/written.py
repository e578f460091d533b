"""Checkpoints of given bytes: one exchange, every virtual channel element by element as the test says."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from cdr_core.flink.channel_state import ChannelId
from cdr_core.flink.channel_writer import SubtaskSide
from cdr_core.flink.metadata import CheckpointMetadata, OperatorState, RelativeFile, Side, SubtaskState, write_metadata
from cdr_core.flink.operator_id import operator_id_of_uid
from cdr_core.synthetic.properties import RETAINED_CHECKPOINT
from tests.support.channel_writer import ChannelStateFile, OwnedChannel, WrittenChannel, channel_handles

MAX_PARALLELISM = 128

SPEC = """
job: written
exchanges:
  - name: main
    upstream: {{operator: gen, partition: 0}}
    downstream: {{operator: slow, gate: 0}}
    partitioner: {partitioner}
    record: TUPLE<LONG, STRING>
    key: [f0]
"""

Sides = tuple[bytes, bytes]


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def record(key: int, text: str = "x", time: int | None = None) -> bytes:
    """A record of the spec's type, with its length field."""
    head = b"\x01" if time is None else b"\x00" + struct.pack(">q", time)
    encoded = text.encode("ascii")
    assert len(encoded) < 127
    return frame(head + struct.pack(">q", key) + bytes([len(encoded) + 1]) + encoded)


def watermark(time: int) -> bytes:
    return frame(b"\x02" + struct.pack(">q", time))


def latency_marker() -> bytes:
    return frame(b"\x03" + struct.pack(">qqqi", 1, 2, 3, 4))


def status(idle: bool) -> bytes:
    return frame(b"\x04" + struct.pack(">i", -1 if idle else 0))


def attributes() -> bytes:
    return frame(b"\x05\x01")


def internal_watermark(time: int) -> bytes:
    return frame(b"\x06" + struct.pack(">iq", 0, time))


def write_checkpoint(folder: Path, ups: int, downs: int, channels: Mapping[tuple[int, int], Sides | bytes]) -> str:
    """A checkpoint whose virtual channel (up, down) holds these bytes of input and of output state.

    Bytes alone are cut in the middle. Each subtask has a file of its own, ``in-0``, ``out-0``, …
    """
    folder.mkdir(parents=True)
    written: list[WrittenChannel] = []
    for side, count in ((Side.INPUT, downs), (Side.OUTPUT, ups)):
        for subtask in range(count):
            pieces = {pair: _sides(both)[side is Side.OUTPUT] for pair, both in sorted(channels.items())}
            mine = {pair: data for pair, data in pieces.items() if pair[side is Side.INPUT] == subtask and data}
            if not mine:
                continue
            name = f"{'in' if side is Side.INPUT else 'out'}-{subtask}"
            with (folder / name).open("xb") as stream:
                file = ChannelStateFile(stream)
                for (up, down), data in mine.items():
                    other = up if side is Side.INPUT else down
                    operator = "slow" if side is Side.INPUT else "gen"
                    file.append(OwnedChannel(operator, side, ChannelId(subtask, 0, other)), [data])
                written += file.written(RelativeFile(name, file.size))
    handles = channel_handles(written, 6)
    operators = tuple(
        OperatorState(
            operator_id_of_uid(name),
            count,
            MAX_PARALLELISM,
            name=name,
            uid=name,
            subtasks=tuple(
                SubtaskState(
                    index,
                    input_channels=handles.get(SubtaskSide(name, Side.INPUT, index), ()),
                    output_channels=handles.get(SubtaskSide(name, Side.OUTPUT, index), ()),
                )
                for index in range(count)
            ),
        )
        for name, count in (("gen", ups), ("slow", downs))
    )
    (folder / "_metadata").write_bytes(
        write_metadata(CheckpointMetadata(6, 1, operators, properties=RETAINED_CHECKPOINT))
    )
    return str(folder)


def _sides(both: Sides | bytes) -> Sides:
    return (both[: len(both) // 2], both[len(both) // 2 :]) if isinstance(both, bytes) else both
