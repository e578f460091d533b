"""Run as a script in front of a command: the command dies with the process that started it, even by SIGKILL.

``python die_with_parent.py PARENT_PID PROGRAM ARGUMENT…`` asks the kernel for SIGKILL at the parent's death and becomes
PROGRAM; the request survives the exec. It is a separate program instead of a ``preexec_fn``, because Python code
between fork and exec can deadlock if the parent has threads. It does not cover PROGRAM's own children.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
PARENT_IS_GONE = 1


def tethered(command: list[str]) -> list[str]:
    """The command line that runs ``command`` tied to the calling thread's process."""
    # Isolated and without site: the wrapper costs milliseconds and ignores the environment.
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(os.getpid()), *command]


def main(arguments: list[str]) -> int:
    """Register for the signal and become the command; return only if the parent is already gone."""
    parent = int(arguments[0])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the request reached the kernel, which then never sends the signal.
    if os.getppid() == parent:
        os.execvp(arguments[1], arguments[1:])
    return PARENT_IS_GONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
