"""Stop all work of a recovery's Spark session, from any process: ``python -m cdr_core.spark.interrupt DIR``.

Killing a client does not stop its job. Every new attempt, and every process that kills a client, calls this first. It
implements the one remote call that it needs, because it must work at once and importing the Connect client takes
seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from cdr_core.errors import CdrError
from cdr_core.spark import processes
from cdr_core.spark.server import ServerHandle, find_server, is_alive, stop_server

_METHOD = "/spark.connect.SparkConnectService/Interrupt"
_USER = "cdr"
_INTERRUPT_ALL = 1
_GRACE = 1.5
"""Seconds in which Spark kills the workers of cancelled tasks itself (its kill timeout is 0.5 s)."""


def interrupt(handle: ServerHandle, timeout: float = 8.0) -> None:
    """Stop every job of the session and every Python worker that worked on one; harmless when nothing runs.

    A server that does not react is stopped as a whole: on return none of the old work may
    continue. :class:`JobFailed` if not even that was possible.
    """
    if not is_alive(handle):
        processes.kill_session(handle.pid, handle.start_time, timeout)
        return
    deadline = time.monotonic() + timeout
    before = processes.python_workers(handle.pid)
    try:
        interrupted = _interrupt_all(handle, timeout / 2)
    except Exception:
        stop_server(handle, timeout)
        return
    if interrupted and not _end_workers(before, _GRACE):
        stop_server(handle, max(1.0, deadline - time.monotonic()))


def _end_workers(workers: list[tuple[int, str]], grace: float) -> bool:
    """Leave them to Spark for the grace, then kill them; return whether all are gone.

    Idle workers among them cannot be told from busy ones, and cost the next task one fork each.
    """
    if _gone(workers, grace):
        return True
    for worker in workers:
        processes.kill(*worker)
    return _gone(workers, 2.0)


def _gone(workers: list[tuple[int, str]], within: float) -> bool:
    deadline = time.monotonic() + within
    while any(processes.is_running(*worker) for worker in workers):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.03)
    return True


def _interrupt_all(handle: ServerHandle, timeout: float) -> list[str]:
    """Return the ids of the operations that were stopped."""
    import grpc  # type: ignore[import-untyped]

    credentials = grpc.composite_channel_credentials(
        grpc.local_channel_credentials(), grpc.access_token_call_credentials(handle.token_file.read_text())
    )
    target = f"localhost:{handle.port}"
    with grpc.secure_channel(target, credentials, options=[("grpc.enable_http_proxy", 0)]) as channel:
        call = channel.unary_unary(_METHOD)
        response: bytes = call(request(handle.session_id), timeout=timeout)
    return [value.decode() for number, value in _fields(response) if number == 2]


def request(session_id: str) -> bytes:
    """``InterruptRequest`` of Spark Connect: session_id = 1, user_context = 2 {user_id = 1}, interrupt_type = 4."""
    user = _text(1, _USER)
    return _text(1, session_id) + bytes([2 << 3 | 2, len(user)]) + user + bytes([4 << 3, _INTERRUPT_ALL])


def _text(number: int, value: str) -> bytes:
    data = value.encode()
    assert len(data) < 128  # one byte of length is all that is written here
    return bytes([number << 3 | 2, len(data)]) + data


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the length-delimited fields of a protobuf message; the answer has no others."""
    position = 0
    while position < len(message):
        tag, position = message[position], position + 1
        size, shift = 0, 0
        while True:
            byte, position = message[position], position + 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if tag & 7 != 2:
            raise ValueError("an answer this version does not know")
        yield tag >> 3, message[position : position + size]
        position += size


def main(argv: list[str]) -> int:
    handle = find_server(Path(argv[0]))
    if handle is None:
        print("no server runs there")
        return 0
    try:
        interrupt(handle)
    except CdrError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
