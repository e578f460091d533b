"""One real server for most tests; those that break theirs start their own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cdr_core import settings
from cdr_core.spark import processes
from cdr_core.spark.server import ServerHandle, ServerSpec, ensure_server, find_server, stop_server

HOME = settings.default_home()
"""Where set-up left the start-up archive, if it was made: the same servers as in earnest."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerHandle]:
    spec = ServerSpec(directory=tmp_path_factory.mktemp("spark") / "server", home=HOME, cores=2, idle_seconds=600)
    handle = ensure_server(spec)
    yield handle
    stop_server(handle)


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Callable[..., ServerSpec]]:
    """A spec for a server of the test's own; whatever runs in its directory at the end is stopped."""
    directory = tmp_path / "server"

    def spec(**changes: object) -> ServerSpec:
        return ServerSpec(directory=directory, home=HOME, cores=2, **changes)  # type: ignore[arg-type]

    yield spec
    if handle := find_server(directory):
        stop_server(handle)


def comes_to_rest(folder: Path, within: float) -> bool:
    """Whether the files in the folder stop growing before that many seconds are over."""
    deadline = time.monotonic() + within
    before: dict[str, int] = {}
    while time.monotonic() < deadline:
        now = {file.name: file.stat().st_size for file in folder.iterdir()}
        if now == before:
            return True
        before = now
        time.sleep(1)
    return False


def start_python(script: str, *arguments: str) -> subprocess.Popen[str]:
    """A process of its own, in the repository's root; the script comes as text."""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script, *arguments],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_python(script: str, *arguments: str) -> str:
    """What the script printed; its end must be a good one."""
    process = start_python(script, *arguments)
    out, err = process.communicate(timeout=110)
    assert process.returncode == 0, err
    return out


def await_files(folder: Path, count: int, within: float = 60) -> None:
    deadline = time.monotonic() + within
    while len(list(folder.iterdir())) < count:
        assert time.monotonic() < deadline, f"only {list(folder.iterdir())} after {within} s"
        time.sleep(0.05)


def members(handle: ServerHandle) -> list[int]:
    return processes.session_members(handle.pid, handle.start_time)
