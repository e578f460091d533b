"""What the figures stand beside: the plainest way to do something with the same bytes."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cdr_core.kernels.frames import TAGS

Bytes = npt.NDArray[np.uint8]

BLOCK = 1 << 20


def copy_memory(source: Bytes, target: Bytes) -> None:
    """One memcpy."""
    np.copyto(target, source)


def warm_python() -> None:
    """Bring :func:`scan_in_python` to the speed it keeps: Python 3.11 specialises a ``while`` loop when its function is
    called for the eighth time, and until then it takes half as long again, so whichever input came first would have had
    the slower baseline.
    """
    for _ in range(8):
        scan_in_python(b"\0\0\0\1\1")


def scan_in_python(data: bytes) -> int:
    """The frames of the bytes by a loop in Python, with what the kernel finds of each: where it begins and ends, its
    tag, and whether it can be one at all.
    """
    head_at = struct.Struct(">iB").unpack_from
    starts, ends, tags = [], [], []
    at, size = 0, len(data)
    while at < size:
        length, tag = head_at(data, at)
        end = at + 4 + length
        if length < 1 or end > size or tag >= TAGS:
            raise ValueError(f"no frame at {at}")
        starts.append(at + 4)
        ends.append(end)
        tags.append(tag)
        at = end
    return len(starts)


def copy_files(sources: Sequence[Path], folder: Path) -> None:
    """Read and write every byte once, a block at a time; nothing is synced."""
    folder.mkdir()
    block = bytearray(BLOCK)
    for number, source in enumerate(sources):
        with source.open("rb", buffering=0) as reader, (folder / str(number)).open("xb", buffering=0) as writer:
            while count := reader.readinto(block):
                writer.write(memoryview(block)[:count])


def read_files(sources: Sequence[Path]) -> None:
    block = bytearray(BLOCK)
    for source in sources:
        with source.open("rb", buffering=0) as reader:
            while reader.readinto(block):
                pass


def write_files(folder: Path, sizes: Sequence[int]) -> None:
    """Files of these sizes, one after another, each synced when it is whole, and the folder at the end."""
    folder.mkdir()
    block = np.random.default_rng(7).bytes(BLOCK)
    for number, size in enumerate(sizes):
        with (folder / str(number)).open("xb", buffering=0) as file:
            for at in range(0, size, BLOCK):
                file.write(memoryview(block)[: min(BLOCK, size - at)])
            os.fsync(file.fileno())
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
