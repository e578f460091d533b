"""The life of a server: one a directory, ended as a whole, however its processes are treated."""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import cdr_core
from cdr_core.errors import JobFailed
from cdr_core.spark import archive, server
from cdr_core.spark.code_stamp import code_stamp, digest
from cdr_core.spark.heartbeat import Heartbeat
from cdr_core.spark.java import installed_java
from cdr_core.spark.server import ServerHandle, ServerSpec, ensure_server, find_server, stop_server
from cdr_core.spark.session import open_session
from cdr_core.spark.units import run_units
from tests.spark import functions
from tests.spark.conftest import HOME, await_files, members, start_python

ENSURE = """
import sys
from cdr_core.spark.server import ServerSpec, ensure_server
print(ensure_server(ServerSpec.from_json(sys.argv[1])).to_json())
"""


def await_end(handle: ServerHandle, within: float) -> None:
    deadline = time.monotonic() + within
    while left := members(handle):
        assert time.monotonic() < deadline, f"processes {left} are left after {within} s"
        time.sleep(0.1)


def test_starting_at_once_from_many_processes_gives_one_server(own_server: Callable[..., ServerSpec]) -> None:
    spec = own_server()
    starters = [start_python(ENSURE, spec.to_json()) for _ in range(4)]
    handles = {ServerHandle.from_json(starter.communicate(timeout=120)[0]) for starter in starters}
    assert len(handles) == 1
    handle = handles.pop()
    assert find_server(spec.directory) == handle

    stop_server(handle)
    assert not members(handle)
    assert sorted(file.name for file in spec.directory.iterdir()) == ["lock", "log4j2.properties", "server.log"]


@pytest.mark.parametrize("code", [None, "", "cdr 0.0.9, sources 0123"])
def test_only_a_server_with_the_stamp_of_this_code_is_current(code: str | None) -> None:
    handle = ServerHandle("/nowhere", 1, "1", 1, "s", code=code_stamp())
    assert ServerHandle.from_json(handle.to_json()).is_current
    assert not dataclasses.replace(handle, code=code).is_current


def test_the_stamp_is_another_when_a_source_file_changes_moves_or_comes(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    seen = [digest(tmp_path)]
    (tmp_path / "a.py").write_text("x = 2\n")
    seen.append(digest(tmp_path))
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    seen.append(digest(tmp_path))
    (tmp_path / "c.py").touch()
    seen.append(digest(tmp_path))
    (tmp_path / "c.pyc").touch()
    assert len(set(seen)) == 4
    assert digest(tmp_path) == seen[-1]


def test_a_server_that_comes_up_with_other_code_again_is_told_as_a_change_of_the_code(
    own_server: Callable[..., ServerSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[ServerSpec] = []
    monkeypatch.setattr(server, "find_server", lambda _: ServerHandle("/nowhere", 1, "1", 1, "s", code="other"))
    monkeypatch.setattr(server, "start_server", started.append)
    with pytest.raises(JobFailed, match=r"the code of cdr changed.*run the phase again"):
        server.wait_ready(own_server())
    assert len(started) == 1, "replaced once"
    monkeypatch.undo()


def test_a_server_of_other_code_is_ended_and_replaced_with_one_line_in_the_log(
    own_server: Callable[..., ServerSpec], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "other"
    shutil.copytree(Path(cdr_core.__file__).parent, other / "cdr_core", ignore=shutil.ignore_patterns("__pycache__"))
    with (other / "cdr_core" / "errors.py").open("a") as source:
        source.write("# another version\n")
    spec = own_server(idle_seconds=60)
    environment = {**os.environ, "PYTHONPATH": str(other)}
    command = [sys.executable, "-W", "ignore", "-c", ENSURE, spec.to_json()]
    started = subprocess.run(command, cwd=other, env=environment, check=True, capture_output=True, timeout=120)
    old = ServerHandle.from_json(started.stdout.decode())
    assert find_server(spec.directory) == old

    with caplog.at_level(logging.WARNING, server.__name__):
        new = ensure_server(spec)
    assert not members(old)
    assert new.is_current
    assert ensure_server(spec) == new, "one of the same code stays"
    (line,) = [record.getMessage() for record in caplog.records if record.name == server.__name__]
    assert str(old.pid) in line
    assert code_stamp() in line


def test_end_of_the_jvm_in_mid_job_is_one_sentence_and_the_next_start_is_clean(
    own_server: Callable[..., ServerSpec], tmp_path: Path
) -> None:
    spec = own_server()
    handle = ensure_server(spec)
    out = tmp_path / "out"
    out.mkdir()

    def kill_the_jvm() -> None:
        await_files(out, 2)
        psutil.Process(handle.pid).children()[0].kill()

    threading.Thread(target=kill_the_jvm).start()
    with (
        open_session("connect", home=HOME, handle=handle) as session,
        pytest.raises(JobFailed, match="the Spark server is gone"),
    ):
        run_units(session, functions.work_for_long, str(out), ["a", "b"], on_poll=lambda: None)
    await_end(handle, within=5)

    second = ensure_server(spec)
    assert second.pid != handle.pid
    os.kill(second.pid, signal.SIGKILL)  # the supervisor itself
    await_end(second, within=5)
    assert find_server(spec.directory) is None


def test_idle_server_ends_and_leaves_no_process(own_server: Callable[..., ServerSpec], tmp_path: Path) -> None:
    """A client that dies without a goodbye, with tasks running, counts as none at all."""
    handle = ensure_server(own_server(idle_seconds=3))
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from cdr_core.spark.server import find_server\n"
        "from cdr_core.spark.session import open_session\n"
        "from cdr_core.spark.units import run_units\n"
        "from tests.spark import functions\n"
        "with open_session('connect', home=Path(sys.argv[2]), handle=find_server(Path(sys.argv[1]))) as session:\n"
        "    run_units(session, functions.sleep_for_long, sys.argv[3], ['a', 'b'], on_poll=lambda: None)\n"
    )
    out = tmp_path / "out"
    out.mkdir()
    with Heartbeat(Path(handle.directory)):  # importing the client may take longer than the idle time
        client = start_python(script, handle.directory, str(HOME), str(out))
        await_files(out, 2)
    time.sleep(4)
    assert members(handle), "a client at work keeps the server up"
    client.kill()
    client.communicate()
    await_end(handle, within=10)
    assert "idle for 3 s" in handle.log_file.read_text()


def test_server_that_cannot_start_says_why_in_one_sentence(own_server: Callable[..., ServerSpec]) -> None:
    with pytest.raises(JobFailed, match=r"did not start: .*JVM ended") as caught:
        ensure_server(own_server(heap="1k"))
    assert "\n" not in str(caught.value)
    assert "server.log" in str(caught.value)


@pytest.mark.spark
def test_broken_archive_is_no_hindrance_and_a_vanished_directory_ends_the_server(tmp_path: Path) -> None:
    java = installed_java()
    assert java is not None
    path = archive.archive_path(tmp_path, java)
    path.parent.mkdir()
    path.write_bytes(b"\xca\xfe" * 100_000)
    handle = ensure_server(ServerSpec(directory=tmp_path / "server", home=tmp_path, cores=1, ui=False))
    try:
        assert str(path) in handle.log_file.read_text(), "the archive was tried"
        assert handle.ui is None
        shutil.rmtree(handle.directory)
        await_end(handle, within=5)
    finally:
        stop_server(handle)


def test_archive_of_another_java_or_other_flags_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = installed_java()
    assert java is not None
    path = archive.archive_path(tmp_path, java)
    assert archive.archive_path(tmp_path, dataclasses.replace(java, home=tmp_path)) != path
    monkeypatch.setattr(archive, "JVM_FLAGS", ("-XX:+UseG1GC",))
    assert archive.archive_path(tmp_path, java) != path
