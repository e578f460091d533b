"""Identity of processes: it survives pid reuse, and covers all processes of one server.

A process id alone identifies nothing: it is reused. Here a process is its id *and* its start time. All processes of a
server share one session (setsid), although PySpark's worker daemon makes a process group of its own; so "everything of
a server" is found by session, never by process group.
"""

from __future__ import annotations

import os
import signal
import time
from functools import cache
from pathlib import Path

import psutil

_STAT_STARTTIME = 19
"""Index of ``starttime`` among the fields of ``/proc/PID/stat`` that follow the command's closing parenthesis."""


def start_time(pid: int) -> str | None:
    """Return when the process started, as text that only compares; ``None`` if it does not exist or is a zombie.

    On Linux it is kernel ticks since boot plus the boot's id: wall-clock start times move when the clock is set.
    """
    stat = Path(f"/proc/{pid}/stat")
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _portable_start_time(pid)
    return None if fields[0] in "ZX" else f"{fields[_STAT_STARTTIME]}@{_boot_id()}"


def _portable_start_time(pid: int) -> str | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.Error:
        return None


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return "?"


def is_running(pid: int, started: str) -> bool:
    """Return whether the very process that had this id and start time still runs."""
    return bool(started) and start_time(pid) == started


def session_members(leader: int, started: str) -> list[int]:
    """Return living processes of this leader's session, the leader last; empty if the session is another's.

    A dead leader's id is not reused while its session has members, so members without a leader are its own.
    """
    owner = start_time(leader)
    if owner is not None and owner != started:
        return []
    members = [pid for pid in psutil.pids() if pid != leader and _session_of(pid) == leader and start_time(pid)]
    return [*members, leader] if owner is not None else members


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def python_workers(supervisor: int) -> list[tuple[int, str]]:
    """Return (id, start time) of a server's Python workers: below the supervisor is the JVM, then the daemon, then
    they.
    """
    try:
        daemons = [daemon for jvm in psutil.Process(supervisor).children() for daemon in jvm.children()]
        found = [child for daemon in daemons for child in daemon.children(recursive=True)]
    except psutil.Error:
        return []
    return [(child.pid, started) for child in found if (started := start_time(child.pid))]


def kill(pid: int, started: str) -> None:
    """SIGKILL that process, and no other that has its id by now (short of a race of microseconds)."""
    if is_running(pid, started):
        send(pid, signal.SIGKILL)


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal; a process that is gone already is fine."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def kill_session(leader: int, started: str, timeout: float = 5.0) -> bool:
    """SIGKILL every process of the session until none is left; ``False`` if some outlived the timeout."""
    deadline = time.monotonic() + timeout
    while members := session_members(leader, started):
        for pid in members:
            if pid != os.getpid():
                send(pid, signal.SIGKILL)
        if members == [os.getpid()]:
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
