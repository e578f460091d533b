"""State as Flink lays it out, made by hand; and a folder in memory that counts what is asked of it."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cdr_core.flink.metadata import (
    FileSegment,
    InlineBytes,
    NamedState,
    Offsets,
    OperatorState,
    OperatorStateHandle,
    RelativeFile,
    StreamHandle,
    SubtaskState,
)
from cdr_core.flink.state import CHUNK, StateFile, redistribute

SPLIT, UNION, BROADCAST = 0, 1, 2
MODES = {SPLIT: "SPLIT_DISTRIBUTE", UNION: "UNION", BROADCAST: "BROADCAST"}
OPERATOR_ID = "0123456789abcdef0123456789abcdef"
SNAPPY = b"\xff\x06\x00\x00sNaPpY"


@dataclass
class Memory:
    """Files by name. Remembers the longest piece that was read or written at once."""

    files: dict[str, bytes] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    longest: int = 0
    inline: bool = False

    def put(self, name: str, data: bytes) -> RelativeFile:
        self.files[name] = data
        return RelativeFile(name, len(data))

    def read(self, handle: StateFile, offset: int, length: int) -> bytes:
        self.longest = max(self.longest, length)
        start = handle.start if isinstance(handle, FileSegment) else 0
        end = start + handle.length if isinstance(handle, FileSegment) else len(self.files[handle.path])
        return self.files[handle.path][start + offset : min(start + offset + length, end)]

    def write(self, name: str, chunks: Iterable[bytes]) -> StreamHandle:
        pieces = list(chunks)
        self.longest = max(self.longest, *map(len, pieces))
        assert name not in self.files
        self.written.append(name)
        data = b"".join(pieces)
        return InlineBytes(name, data) if self.inline else self.put(name, data)

    def bytes(self, handle: StreamHandle | None) -> bytes:
        if isinstance(handle, InlineBytes):
            return handle.data
        assert isinstance(handle, RelativeFile)
        return self.files[handle.path]

    def moved(self, operator: OperatorState, parallelism: int, version: int = 6) -> tuple[SubtaskState, ...]:
        """Redistributed; nothing was held in memory that is longer than a chunk."""
        moved = redistribute(operator, parallelism, self.read, self.write, version=version, checkpoint_id=7)
        assert self.longest <= CHUNK
        return moved


def utf(text: str) -> bytes:
    return struct.pack(">H", len(text.encode())) + text.encode()


def entry(name: str, mode: int, serializer: bytes = b"\0\1\2") -> bytes:
    """What a head says of one state; a serializer's description is bytes of any content."""
    kind = 2 if mode == BROADCAST else 1
    option = utf("OPERATOR_STATE_DISTRIBUTION_MODE") + utf(MODES[mode])
    return (
        utf(name) + struct.pack(">ii", kind, 1) + option + struct.pack(">i", 1) + utf("VALUE_SERIALIZER") + serializer
    )


def head(states: Sequence[tuple[str, int]], *, compressed: bool = False, serializer: bytes = b"\0\1\2") -> bytes:
    lists = [entry(name, mode, serializer) for name, mode in states if mode != BROADCAST]
    broadcasts = [entry(name, mode, serializer) for name, mode in states if mode == BROADCAST]
    return b"".join(
        (
            struct.pack(">i?", 6, compressed),
            *(struct.pack(">h", len(lists)), *lists),
            *(struct.pack(">h", len(broadcasts)), *broadcasts),
            SNAPPY if compressed else b"",
        )
    )


def operator_handle(
    memory: Memory, name: str, first: bytes, states: Mapping[tuple[str, int], Sequence[bytes]]
) -> OperatorStateHandle:
    """A subtask's file: the head, then the elements of each state."""
    data, named = bytearray(first), []
    for (state, mode), elements in states.items():
        offsets = []
        for element in elements:
            offsets.append(len(data))
            data += element
        named.append(NamedState(state, mode, Offsets.of(offsets)))
    return OperatorStateHandle(tuple(named), memory.put(name, bytes(data)))


def elements(memory: Memory, handle: OperatorStateHandle, state: str) -> list[bytes]:
    """What a reader finds at the offsets of a state, each up to the next offset of any."""
    data = memory.bytes(handle.delegate)
    borders = sorted({offset for each in handle.states for offset in each.offsets} | {len(data)})
    (offsets,) = (each.offsets for each in handle.states if each.name == state)
    return [data[offset : next(border for border in borders if border > offset)] for offset in offsets]


def operator(
    subtasks: Sequence[SubtaskState], parallelism: int | None = None, max_parallelism: int = 128
) -> OperatorState:
    return OperatorState(OPERATOR_ID, parallelism or len(subtasks), max_parallelism, uid="op", subtasks=tuple(subtasks))
