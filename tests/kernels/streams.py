"""Channels of a few elements, cut anywhere."""

from __future__ import annotations

import struct

import numpy as np

from cdr_core.errors import Where
from cdr_core.flink.virtual_channel import ChannelBytes, Part

WHERE = Where(exchange="main", subtask=1, gate=0, channel=2)


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def record(value: bytes) -> bytes:
    return frame(b"\x01" + value)


def watermark(time: int) -> bytes:
    return frame(b"\x02" + struct.pack(">q", time))


def channel(pieces: list[bytes], input_pieces: int = 0) -> ChannelBytes:
    def part(chunks: list[bytes]) -> Part:
        """Chunks lie scattered and in reverse, as they may in a shared file."""
        data = bytearray(b"#" * 3)
        starts: list[int] = []
        for chunk in reversed(chunks):
            starts.insert(0, len(data))
            data += chunk + b"?"
        lengths = [len(chunk) for chunk in chunks]
        return Part(np.frombuffer(bytes(data), np.uint8), np.array(starts, np.int64), np.array(lengths, np.int64))

    return ChannelBytes((part(pieces[:input_pieces]),), (part(pieces[input_pieces:]),), WHERE)


STREAM = [record(b"a"), watermark(7), record(b"bb" * 20), record(b""), record(b"c" * 9)]


WHOLE = [piece[4:] for piece in STREAM]
