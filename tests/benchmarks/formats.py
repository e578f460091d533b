"""Reading formats: decoding to Arrow, scanning frames, and what ``cdr inspect`` reads of a checkpoint."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from cdr_core.channels.channel_source import open_channel
from cdr_core.flink.decode import decode_values
from cdr_core.flink.types import parse_type
from cdr_core.flink.virtual_channel import ChannelBytes, windows
from cdr_core.kernels import frames
from tests.benchmarks.baselines import beside_python, copy_memory
from tests.benchmarks.figures import Bar, Bench, Figure, Sizes, core_seconds, speeds
from tests.benchmarks.inputs import LONG_KEY, RECORDS, checkpoint, held, plan_of, state_files

WINDOW = 1 << 20

NOT_MEASURED = ("Formats on S3: what is fetched there depends on the network and the server.",)


def needs(sizes: Sizes) -> int:
    return 2 * sizes.buffer + sizes.checkpoint


def run(bench: Bench) -> Iterator[Figure]:
    yield _decode(bench)
    yield _scan(bench)
    yield from _inspect(bench)


def _decode(bench: Bench) -> Figure:
    bench.say("decode: making 100-byte records")
    folder = checkpoint(bench.scratch / "decode", bench.sizes.buffer, "1", "100-100")
    channel = open_channel(plan_of(folder, "1"), 0)
    plain = _bytes(channel).tobytes()
    measured, baseline, detail = beside_python(bench, plain, lambda: decode_channel(channel))
    return Figure(
        "decode-100",
        "decoding 100-byte tuple records to Arrow, framing included, one core",
        "a script in Python that scans the frames",
        "MB/s",
        measured,
        baseline,
        Bar(low=4),
        detail=detail,
    )


def decode_channel(channel: ChannelBytes) -> int:
    """Every record of the channel as Arrow columns, a window at a time; how many there were."""
    description = parse_type(RECORDS[LONG_KEY])
    count = 0
    for window in windows(channel, 0, channel.size, 0, WINDOW):
        records = window.records
        times, values = np.empty(len(records), np.int64), np.empty(len(records), np.int64)
        frames.element_times(window.data, window.starts, window.tags, times, values)
        count += len(decode_values(description, window.data, values[records], window.ends[records]).values)
    return count


def _scan(bench: Bench) -> Figure:
    bench.say("scan: making 1 KB records")
    folder = checkpoint(bench.scratch / "scan", bench.sizes.buffer, "1", "1000-1048")
    data = _bytes(open_channel(plan_of(folder, "1"), 0))
    target = np.zeros(len(data), np.uint8)
    room = len(data) // 20 + 1
    starts, ends, tags = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int8)
    measured, baseline = bench.taking_turns(
        lambda: core_seconds(lambda: frames.scan_frames(data, len(data), starts, ends, tags, len(data))),
        lambda: core_seconds(lambda: copy_memory(data, target)),
    )
    return Figure(
        "scan-1k",
        "scanning frames of 1 KB records, one core",
        "memcpy",
        "MB/s",
        speeds(len(data), measured),
        speeds(len(data), baseline),
        Bar(low=0.4),
    )


def _bytes(channel: ChannelBytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    data = np.empty(channel.size, np.uint8)
    channel.copy(0, channel.size, data)
    return data


def _inspect(bench: Bench) -> Iterator[Figure]:
    bench.say("inspect: making a checkpoint")
    folder = checkpoint(bench.scratch / "inspect", bench.sizes.checkpoint, bench.before, "900-1100")
    payload = state_files(folder)
    size = sum(file.stat().st_size for file in payload)
    spec = ["--spec", str(folder.with_name("inspect.yaml"))]
    ways = [("inspect", [], Bar(high=0)), ("inspect-with-spec", spec, Bar())]
    for name, options, bar in ways[: 1 if bench.tiny else 2]:
        touched = _touched(payload, ["inspect", str(folder), "--json", *options])
        yield Figure(
            name,
            f"payload that `cdr inspect{' --spec' if options else ''}` reads: pages of the channel-state files that "
            "are in memory afterwards and were not before",
            "the payload",
            "bytes",
            (touched,),
            (size,),
            bar,
            detail={"metadata_bytes": held(folder) - size},
        )


def _touched(files: list[Path], command: list[str]) -> int:
    """Bytes of the files that a ``cdr`` command brings into memory, whichever way it reads them."""
    for file in files:
        _forget(file)
    before = sum(_resident(file) for file in files)
    cdr = Path(sys.executable).with_name("cdr")
    subprocess.run([cdr, *command], check=True, stdout=subprocess.DEVNULL)
    return sum(_resident(file) for file in files) - before


def _forget(file: Path) -> None:
    with file.open("rb") as handle:
        os.fsync(handle.fileno())
        os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _resident(file: Path) -> int:
    """Bytes of a file that the page cache holds."""
    size = file.stat().st_size
    if not size:
        return 0
    pages = -(-size // mmap.PAGESIZE)
    seen = (ctypes.c_ubyte * pages)()
    with file.open("r+b") as handle, mmap.mmap(handle.fileno(), size) as mapped:
        view = (ctypes.c_char * size).from_buffer(mapped)
        try:
            failed = ctypes.CDLL(None, use_errno=True).mincore(
                ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(size), seen
            )
        finally:
            del view
    if failed:
        raise OSError(ctypes.get_errno(), "mincore")
    return min(sum(page & 1 for page in seen) * mmap.PAGESIZE, size)
