"""Committers in processes of their own, to be run against each other: ``run(n, function)``."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path


def run(count: int, work: Callable[[int], None], folder: Path) -> None:
    """``work(0)`` … ``work(count - 1)``, each in a forked process, released at the same moment."""
    go = folder / f"go-{os.urandom(4).hex()}"
    children = []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                while not go.exists():
                    time.sleep(0.001)
                work(number)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(pid)
    time.sleep(0.05)
    go.touch()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0] * count
