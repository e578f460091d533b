"""Processes that keep the cores busy while something is tested."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SPIN = "import os, threading\nthreading.Thread(target=lambda: (os.read(0, 1), os._exit(0))).start()\nwhile True: pass"


@contextmanager
def contention(wished: int | None = None) -> Iterator[int]:
    """So many busy processes, one per core unless told, from the first line to the last.

    Each ends when its standard input does, so none outlives this process; one that ended by itself before would make
    a test under load one without, so that is an error.
    """
    count = (os.cpu_count() or 1) if wished is None else wished
    busy = [subprocess.Popen([sys.executable, "-c", SPIN], stdin=subprocess.PIPE) for _ in range(count)]
    try:
        yield len(busy)
        assert [each.poll() for each in busy] == [None] * count, "the load ended before what it was meant for"
    finally:
        for each in busy:
            each.kill()
            each.wait()
            assert each.stdin is not None
            each.stdin.close()
