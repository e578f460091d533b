"""What the figures stand beside: the plainest way to do something with the same bytes."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from cdr_core.commit.sinks.prepared_files import parquet_options
from cdr_core.kernels.frames import TAGS
from tests.benchmarks.figures import Bench, core_seconds, speeds

Bytes = npt.NDArray[np.uint8]

BLOCK = 1 << 20


def copy_memory(source: Bytes, target: Bytes) -> None:
    """One memcpy."""
    np.copyto(target, source)


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


def write_tables(folder: Path, tables: Sequence[tuple[pa.Table, int]]) -> None:
    """Parquet files of the tables, one after another, with as many rows in a row group; each is synced, none stays."""
    file = folder / "written.parquet"
    for table, rows in tables:
        pq.write_table(table, file, row_group_size=rows, **parquet_options(table.schema))
        with file.open("rb") as written:
            os.fsync(written.fileno())
        file.unlink()


SPECIALISED = 8
"""Calls after which Python 3.11 has made a function with a ``while`` loop as fast as it gets."""


def seconds_in_python(data: bytes, calls_before: int = 0) -> float:
    """Processor time of :func:`scan_in_python` in a process of its own, so what was measured before does not matter.

    A script that scans a file calls it once; whoever calls it often has it half as fast again from the eighth call on.
    """
    fork = multiprocessing.get_context("fork")
    taken = fork.SimpleQueue()

    def scan() -> None:
        for _ in range(calls_before):
            scan_in_python(b"\0\0\0\1\1")
        taken.put(core_seconds(lambda: scan_in_python(data)))

    child = fork.Process(target=scan)
    child.start()
    child.join()
    if child.exitcode:
        raise SystemExit(f"bench: the scan in Python ended with {child.exitcode}")
    return float(taken.get())


def beside_python(
    bench: Bench, data: bytes, work: Callable[[], object]
) -> tuple[tuple[float, ...], tuple[float, ...], dict[str, float]]:
    """Speeds of the work and of a script in Python that only scans the frames of the same bytes; and, for the record,
    the ratio to a scan that was called often before.
    """
    measured, baseline = bench.taking_turns(lambda: core_seconds(work), lambda: seconds_in_python(data))
    often = [seconds_in_python(data, SPECIALISED) for _ in measured]
    ratio = statistics.median(often) / statistics.median(measured)
    return speeds(len(data), measured), speeds(len(data), baseline), {"ratio_to_a_scan_called_often": round(ratio, 2)}


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
