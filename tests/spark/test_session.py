"""Clients of the shared server: who may attach, and what they find."""

from __future__ import annotations

import dataclasses
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from cdr_core.errors import JobFailed, Refused
from cdr_core.spark.server import ServerHandle, is_alive
from cdr_core.spark.session import open_session
from tests.spark.conftest import HOME, members


def test_second_client_attaches_to_the_same_session(server: ServerHandle) -> None:
    with open_session("connect", home=HOME, handle=server) as first:
        first.conf.set("spark.sql.shuffle.partitions", "7")
    with open_session("connect", home=HOME, handle=server) as second:
        assert second.conf.get("spark.sql.shuffle.partitions") == "7"
        assert second.range(3, numPartitions=3).count() == 3


def test_wrong_token_is_refused(server: ServerHandle, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("not-the-token")
    (tmp_path / "clients").mkdir()
    impostor = dataclasses.replace(server, directory=str(tmp_path))
    with pytest.raises(Refused, match="refused the token"), open_session("connect", home=HOME, handle=impostor):
        pass


def test_token_is_in_no_command_line_and_no_log(server: ServerHandle) -> None:
    token = server.token_file.read_text()
    assert server.token_file.stat().st_mode & 0o077 == 0
    for pid in members(server):
        assert token not in Path(f"/proc/{pid}/cmdline").read_text(), f"process {pid} shows the token"
    assert token not in server.log_file.read_text()
    assert token not in server.to_json()


def test_server_listens_on_loopback_only(server: ServerHandle) -> None:
    listening = [
        connection.laddr.ip.removeprefix("::ffff:")
        for pid in members(server)
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == "LISTEN"
    ]
    assert server.port
    assert listening
    assert set(listening) <= {"127.0.0.1", "::1"}


def test_spark_ui_answers_at_the_address_in_the_handle(server: ServerHandle) -> None:
    assert server.ui is not None
    fetched = subprocess.run(["curl", "-sSL", "--noproxy", "*", server.ui], capture_output=True, text=True, check=True)
    assert "Spark" in fetched.stdout


def test_handle_survives_being_stored(server: ServerHandle) -> None:
    assert ServerHandle.from_json(server.to_json()) == server


def test_another_process_with_the_same_id_is_not_the_server(server: ServerHandle) -> None:
    assert is_alive(server)
    assert not is_alive(dataclasses.replace(server, start_time="1@another"))


def test_dead_server_is_one_sentence_within_seconds(server: ServerHandle) -> None:
    """Alive as a process, dead on its port: nothing but the bounded retries of the client ends the wait."""
    deaf = dataclasses.replace(server, port=1)
    began = time.monotonic()
    with pytest.raises(JobFailed, match="is gone") as caught, open_session("connect", home=HOME, handle=deaf):
        pass
    assert time.monotonic() - began < 8
    assert "\n" not in str(caught.value)


def test_connect_without_a_server_is_refused() -> None:
    with pytest.raises(Refused, match="handle"), open_session("connect", home=HOME):
        pass
