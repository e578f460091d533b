"""Spill sets made by hand, tiers, and a disk that is really small."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from cdr_core.spill.placement import Place
from cdr_core.spill.reader import read_segments
from cdr_core.spill.segments import SpillSet
from cdr_core.spill.tiers import Tier
from cdr_core.spill.writer import SpillWriter

RECOVERY = "r-0123456789"

Batches = Sequence[tuple[int, Sequence[bytes]]]
"""Records by virtual channel, in order."""


def frames(values: Sequence[bytes]) -> bytes:
    return b"".join(struct.pack(">i", len(value)) + value for value in values)


def places(tiers: Sequence[Tier], name: str = "set-1", epoch: int = 1, recovery: str = RECOVERY) -> list[Place]:
    return [Place.of_attempt(tier, recovery, epoch, name) for tier in tiers]


def append(writer: SpillWriter, batches: Batches) -> None:
    position = 0
    for channel, values in batches:
        body = np.frombuffer(frames(values), np.uint8)
        positions = np.arange(position, position + len(values), dtype=np.int64)
        position += len(values)
        writer.append(channel, 0, channel, body, 0, np.array([0]), np.array([len(body)]), positions)


def write(
    directory: Path, batches: Batches, segment_size: int = 64, file_size: int = 256, where: Sequence[Place] = ()
) -> SpillSet:
    with SpillWriter(directory, 3, segment_size, file_size, where) as writer:
        append(writer, batches)
        return writer.seal(())


def read(spill_set: SpillSet) -> list[tuple[int, bytes, list[int]]]:
    return [(b.segment.virtual_channel, b.body.tobytes(), b.positions.tolist()) for b in read_segments(spill_set)]


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
