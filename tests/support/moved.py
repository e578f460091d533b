"""Bytes that processes really read and wrote, as ``strace`` and the requests to an S3 server tell, against the counters
of a recovery.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cdr_core.channels.channel_source import neighbours, open_checkpoint
from cdr_core.flink.channel_state import LENGTH_SIZE
from cdr_core.planning.job_spec import parse_spec
from cdr_core.planning.parallelism import parse_parallelism
from cdr_core.planning.plan import make_plan
from tests.durability.trace import Call, calls

CALLS = "pread64,preadv,preadv2,pwrite64,pwritev,pwritev2,write,writev,openat"
READS = frozenset({"pread64", "preadv", "preadv2"})
WRITES = frozenset({"pwrite64", "pwritev", "pwritev2", "write", "writev"})
OPTIONS = ("-f", "-y", "-s", "0", "-e", f"trace={CALLS}")
ATTACH_SECONDS = 30.0


def can_trace() -> bool:
    """Whether strace is here and may look at processes that it did not start."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    is_free = not scope.is_file() or scope.read_text().strip() == "0"
    return shutil.which("strace") is not None and (os.geteuid() == 0 or is_free)


@dataclass(frozen=True)
class Stretch:
    """Bytes [begin, end) of a file or an object."""

    begin: int
    end: int


class Trace:
    """What the calls in a file of strace moved, by the path of the file they moved it from or to."""

    def __init__(self, file: Path) -> None:
        with file.open(errors="replace") as lines:
            self._calls: list[Call] = list(calls(lines))

    def read(self, part: str) -> list[Stretch]:
        """What was read at a place of the files whose path has this part."""
        return [Stretch(c.offset, c.offset + c.returned) for c in self._of(READS, part)]

    def bytes_read(self, part: str) -> int:
        return sum(call.returned for call in self._of(READS, part))

    def bytes_written(self, part: str) -> int:
        return sum(call.returned for call in self._of(WRITES, part))

    def _of(self, names: frozenset[str], part: str) -> Iterator[Call]:
        return (call for call in self._calls if call.name in names and call.paths and part in call.paths[0])


@contextmanager
def attached(pids: Sequence[int], file: Path) -> Iterator[None]:
    """Inside the block strace follows these processes and all that they fork."""
    said = file.with_suffix(".said")
    of = [argument for pid in pids for argument in ("-p", str(pid))]
    with said.open("wb") as errors:
        tracer = subprocess.Popen(["strace", *OPTIONS, "-o", str(file), *of], stderr=errors, stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + ATTACH_SECONDS
    try:
        while not all(f"Process {pid} attached" in said.read_text() for pid in pids):
            assert tracer.poll() is None, f"strace ended: {said.read_text()}"
            assert time.monotonic() < deadline, f"strace did not attach: {said.read_text()}"
            time.sleep(0.02)
        yield
    finally:
        tracer.send_signal(signal.SIGINT)  # it lets the processes go on
        tracer.wait()


def chunk_begins(checkpoint: str, spec: str) -> npt.NDArray[np.int64]:
    """Where the chunks of a checkpoint with one channel-state file begin in it, each with its length field."""
    plan = make_plan(open_checkpoint(checkpoint), parse_spec(spec), parse_parallelism("same"), 1 << 30)
    (file,) = (path for path in Path(checkpoint).iterdir() if path.name != "_metadata")
    return neighbours(plan, str(file))


def payload(read: Iterable[Stretch], begins: npt.NDArray[np.int64]) -> int:
    """Bytes of elements in what was read, none of it twice: all but the length fields of chunks that begin in it."""
    found = sorted(read, key=lambda each: each.begin)
    assert all(one.end <= other.begin for one, other in pairwise(found)), "a byte was read twice"
    fields = sum(int(((begins >= each.begin) & (begins + LENGTH_SIZE <= each.end)).sum()) for each in found)
    return sum(each.end - each.begin for each in found) - LENGTH_SIZE * fields
