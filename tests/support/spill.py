"""Spill sets made by hand, tiers, and a disk that is really small."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdr_core.audit.ledger import NOTHING
from cdr_core.errors import CdrError
from cdr_core.spill.set_reader import read_segment
from cdr_core.spill.set_writer import SetWriter
from cdr_core.spill.spill_set import SpillSet
from cdr_core.spill.tiered_files import Place
from cdr_core.spill.tiers import Tier

RECOVERY = "r-0123456789"

Batches = Sequence[tuple[int, Sequence[bytes]]]
"""Elements by line, in order."""
Piece = tuple[int, Sequence[bytes], int]
"""A line, its elements, and the position of the first."""


def frames(values: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(value)) + value for value in values)


def places(tiers: Sequence[Tier], name: str = "set-1", epoch: int = 1, recovery: str = RECOVERY) -> list[Place]:
    return [Place.of_attempt(tier, recovery, epoch, name) for tier in tiers]


def append(writer: SetWriter, pieces: Sequence[Piece]) -> None:
    """Add one segment."""
    bodies = [frames(values) for _, values, _ in pieces]
    elements = np.array([len(values) for _, values, _ in pieces])
    writer.append(
        np.frombuffer(b"".join(bodies), np.uint8),
        np.array([line for line, _, _ in pieces]),
        np.array([len(body) for body in bodies]),
        elements,
        (np.ones(len(pieces), np.int64), np.array([position for _, _, position in pieces]), elements),
    )


def write_segments(
    directory: Path, segments: Sequence[Sequence[Piece]], file_size: int, where: Sequence[Place] = ()
) -> SpillSet:
    with SetWriter(directory, 3, file_size, where) as writer:
        for pieces in segments:
            append(writer, pieces)
        return writer.seal(NOTHING)


def segments_of(batches: Batches, segment_size: int) -> list[list[Piece]]:
    """Pieces in segments of at most that size, or of one piece; positions count through."""
    segments: list[list[Piece]] = []
    position = used = 0
    for line, values in batches:
        size = len(frames(values))
        if not segments or used + size > segment_size:
            segments.append([])
            used = 0
        segments[-1].append((line, values, position))
        position, used = position + len(values), used + size
    return segments


def write(
    directory: Path, batches: Batches, segment_size: int = 64, file_size: int = 256, where: Sequence[Place] = ()
) -> SpillSet:
    return write_segments(directory, segments_of(batches, segment_size), file_size, where)


class _NoSource:
    """For sets without references."""

    def read(self, line: int, starts: Any, ends: Any, target: memoryview) -> None:
        raise AssertionError("everything is stored")

    def changed(self, line: int) -> CdrError:
        raise AssertionError("everything is stored")


NO_SOURCE = _NoSource()


def read(spill_set: SpillSet) -> list[Any]:
    """Everything in a set: per segment the bytes, and of each piece line, end and elements; then all positions."""
    found = []
    for number in range(spill_set.segments):
        segment = read_segment(spill_set, number, NO_SOURCE)
        pieces = np.stack((segment.lines, segment.ends, segment.elements)).T.tolist()
        found.append((segment.body.tobytes(), pieces, segment.positions.tolist()))
    return found


def spilled_bytes(tier: Tier) -> int:
    """What lies in a tier, by the files themselves; the ledger is not counted."""
    return sum(path.stat().st_size for path in Path(tier.path).glob("*/e*/**/*") if path.is_file())


@contextmanager
def small_disk(path: Path, size: int) -> Iterator[None]:
    """A file system of its own with that many bytes; skips the test where this user may not mount one."""
    path.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "cdr-test", path], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)
