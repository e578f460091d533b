"""Work of a client that is gone, or does not listen, is stopped by somebody else."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from cdr_core.errors import JobFailed
from cdr_core.spark import processes
from cdr_core.spark.interrupt import interrupt, request
from cdr_core.spark.server import ServerHandle, ServerSpec, ensure_server, find_server, is_alive
from cdr_core.spark.session import open_session
from cdr_core.spark.units import run_units
from cdr_core.spark.worker import UnitFunction
from tests.spark import functions
from tests.spark.conftest import HOME, await_files, comes_to_rest, members, start_python

CLIENT = """
import sys
from pathlib import Path
from cdr_core.spark.server import find_server
from cdr_core.spark.session import open_session
from cdr_core.spark.units import run_units
from tests.spark import functions
with open_session("connect", home=Path(sys.argv[3]), handle=find_server(Path(sys.argv[1]))) as session:
    run_units(session, functions.work_for_long, sys.argv[2], ["a", "b"], on_poll=lambda: None)
"""


@pytest.mark.parametrize("function", [functions.work_for_long, functions.sleep_for_long])
def test_interrupt_stops_a_long_task_and_its_worker(
    server: ServerHandle, tmp_path: Path, function: UnitFunction
) -> None:
    with open_session("connect", home=HOME, handle=server) as session:
        caught: list[BaseException] = []

        def job() -> None:
            try:
                run_units(session, function, str(tmp_path), ["a", "b"], on_poll=lambda: None)
            except BaseException as error:
                caught.append(error)

        thread = threading.Thread(target=job)
        thread.start()
        await_files(tmp_path, 2)
        busy = processes.python_workers(server.pid)
        began = time.monotonic()
        interrupt(server)
        took = time.monotonic() - began
        thread.join(10)
    assert took < 8
    assert busy
    assert not [worker for worker in busy if processes.is_running(*worker)], "a worker outlived the interrupt"
    assert isinstance(caught[0], JobFailed)
    assert "interrupted" in str(caught[0])
    assert is_alive(server), "an obedient server stays up"


def test_interrupt_of_an_idle_session_is_quick_and_harmless(server: ServerHandle) -> None:
    began = time.monotonic()
    interrupt(server)
    assert time.monotonic() - began < 2
    assert is_alive(server)


def test_job_of_a_killed_client_is_stopped_by_another(server: ServerHandle, tmp_path: Path) -> None:
    client = start_python(CLIENT, server.directory, str(tmp_path), str(HOME))
    await_files(tmp_path, 2)
    client.kill()
    client.communicate()
    assert not comes_to_rest(tmp_path, within=2.5), "killing the client alone does not stop its tasks"
    subprocess.run([sys.executable, "-m", "cdr_core.spark.interrupt", server.directory], check=True, timeout=30)
    assert comes_to_rest(tmp_path, within=10)
    with open_session("connect", home=HOME, handle=server) as session:
        run_units(session, functions.leave_file, str(tmp_path), ["next"], on_poll=lambda: None)


def test_server_that_does_not_obey_is_stopped_whole(own_server: Callable[..., ServerSpec]) -> None:
    handle = ensure_server(own_server())
    jvm = psutil.Process(handle.pid).children()[0]
    jvm.suspend()
    interrupt(handle, timeout=4)
    assert not members(handle)
    assert find_server(Path(handle.directory)) is None
    interrupt(handle)  # of a server that is gone: nothing to do


def test_request_is_what_the_client_library_would_send() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pyspark.sql.connect.proto as pb2
    wanted = pb2.InterruptRequest(
        session_id="00112233-4455-6677-8899-aabbccddeeff",
        user_context=pb2.UserContext(user_id="cdr"),
        interrupt_type=pb2.InterruptRequest.INTERRUPT_TYPE_ALL,
    )
    assert request(wanted.session_id) == wanted.SerializeToString(deterministic=True)
