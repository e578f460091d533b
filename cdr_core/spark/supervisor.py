"""The process that starts a Connect server's JVM, watches it, and stops everything at the end.

``python -m cdr_core.spark.supervisor SPEC``: takes the directory's lock, leaves its parent, leads a session of its own,
starts the JVM, writes ``server.json`` when the ports answer. It ends the server on SIGTERM, on a ``stop`` file, after
the idle time, when the directory vanishes, and when the JVM ends by itself. Then no process of the session is left. If
the supervisor itself is killed, the kernel kills the JVM (parent-death signal), whose workers end with it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import FrameType

from cdr_core.errors import CdrError
from cdr_core.spark import archive, launch, processes, server
from cdr_core.spark.code_stamp import code_stamp
from cdr_core.spark.heartbeat import CLIENTS, Listener
from cdr_core.spark.java import embedded_java
from cdr_core.spark.worker import NOTES_VARIABLE

_TICK_SECONDS = 0.3
_START_TICK_SECONDS = 0.03
_PR_SET_PDEATHSIG = 1

_CONNECT_PORT = re.compile(r"Spark Connect server started at: \S*:(\d+)")
_UI_PORT = re.compile(r"Successfully started service 'SparkUI' on port (\d+)")
_USELESS = re.compile(r"^\s*(at |\.\.\. \d+ more|WARNING:|Picked up |$)")


class _Ended(Exception):
    """The reason why the server is stopped."""


def _write_whole(file: Path, text: str) -> None:
    """Write a file atomically, readable by this user only."""
    fresh = file.with_name(f".{file.name}-{os.getpid()}")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)
    fresh.replace(file)


def _die_with_parent() -> None:
    """Run in the child before exec: a JVM without a supervisor would run forever."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Supervisor:
    """One server from start to end; the lock is held by the caller."""

    def __init__(self, spec: server.ServerSpec) -> None:
        self.spec = spec
        self.directory = spec.directory
        self.scratch = spec.directory / "scratch"
        self.session_id = str(uuid.uuid4())
        self._log = spec.directory / server.LOG_FILE
        self._jvm: subprocess.Popen[bytes] | None = None
        self._stop_requested = False

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._on_term)
        try:
            self._prepare()
            self._watch(self._start())
        except _Ended as end:
            self._print(str(end))
            self._finish_recording()
        except Exception as error:  # any error: processes that wait for the server read it
            self._fail(str(error))
        finally:
            self._clean()

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        self._stop_requested = True

    def _print(self, what: str) -> None:
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} supervisor {os.getpid()}: {what}", file=sys.stderr, flush=True)

    def _fail(self, reason: str) -> None:
        self._print(f"failed: {reason}")
        if self.directory.is_dir():
            _write_whole(self.directory / server.FAILURE_FILE, json.dumps({"reason": reason.rstrip(".")}))

    def _prepare(self) -> None:
        """Remove files of a killed predecessor, so that they are not mistaken for this server's."""
        predecessor = server.read_handle(self.directory)
        if predecessor is not None:
            processes.kill_session(predecessor.pid, predecessor.start_time)
        for name in (server.HANDLE_FILE, server.FAILURE_FILE, server.STOP_FILE):
            (self.directory / name).unlink(missing_ok=True)
        shutil.rmtree(self.directory / CLIENTS, ignore_errors=True)
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir(mode=0o700)
        self.listener = Listener(self.directory, time.monotonic())
        self._token = secrets.token_urlsafe(32)
        _write_whole(self.directory / server.TOKEN_FILE, self._token)
        _write_whole(self.directory / "log4j2.properties", launch.LOG_CONFIG)

    def _start(self) -> subprocess.Popen[bytes]:
        """Start with the archive if one fits; if the JVM does not survive that, once more without."""
        if self.spec.record is not None:
            java = embedded_java(prefer_installed=True)
            return self._start_once(str(java.executable), (f"-XX:AOTCacheOutput={self.spec.record}",))
        usable = archive.usable_archive(self.spec.home)
        if usable is None:
            return self._start_once(str(embedded_java(prefer_installed=False).executable), ())
        java, path = usable
        try:
            return self._start_once(str(java.executable), (f"-XX:AOTCache={path}",))
        except CdrError as error:
            self._print(f"it did not start with its archive, trying without: {error}")
            jvm = self._start_once(str(java.executable), ())
            archive.set_aside(path)  # only now is the archive known to be the cause
            return jvm

    def _start_once(self, java: str, flags: tuple[str, ...]) -> subprocess.Popen[bytes]:
        cores = self.spec.cores or _host_cores()
        conf = {
            "spark.master": f"local[{cores},4]",
            "spark.ui.enabled": str(self.spec.ui).lower(),
            **self.spec.conf,
        }
        arguments = launch.arguments(
            conf, heap=self.spec.heap, scratch=self.scratch, log_config=self.directory / "log4j2.properties"
        )
        # In a file, because ``ps`` shows the arguments of all processes to all users.
        argument_file = self.directory / "java.args"
        _write_whole(argument_file, launch.argument_file(arguments))
        offset = self._log.stat().st_size
        self._print(f"starting {java} {' '.join(flags)}")
        jvm = subprocess.Popen(
            [java, *flags, f"@{argument_file}", launch.MAIN_CLASS],
            env=self._environment(),
            cwd=self.scratch,
            stdin=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
        )
        self._jvm = jvm
        self._await_ports(jvm, offset)
        return jvm

    def _environment(self) -> dict[str, str]:
        fixed = {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": self._token,
            NOTES_VARIABLE: str(self.scratch / "notes"),
        }
        # SPARK_HOME would make the workers import pyspark from a zip; SPARK_REMOTE would make the server a client.
        dropped = ("SPARK_HOME", "SPARK_REMOTE", "SPARK_CONF_DIR", "SPARK_LOCAL_DIRS", "JDK_JAVA_OPTIONS")
        return {name: value for name, value in os.environ.items() if name not in dropped} | fixed

    def _await_ports(self, jvm: subprocess.Popen[bytes], offset: int) -> None:
        """Wait until the log names the port; then the server listens."""
        deadline = time.monotonic() + server.START_TIMEOUT
        while time.monotonic() < deadline:
            self._check()
            text = self._log_from(offset)
            port = _CONNECT_PORT.search(text)
            if port:
                ui = _UI_PORT.search(text)
                self._announce(int(port.group(1)), int(ui.group(1)) if ui else None)
                return
            if jvm.poll() is not None:
                raise CdrError(f"the JVM ended with status {jvm.returncode}: {_first_useful(text)}")
            time.sleep(_START_TICK_SECONDS)
        jvm.kill()
        raise CdrError(f"no port after {server.START_TIMEOUT:.0f} s: {_first_useful(self._log_from(offset))}")

    def _log_from(self, offset: int) -> str:
        with self._log.open("rb") as log:
            log.seek(offset)
            return log.read(1 << 20).decode(errors="replace")

    def _announce(self, port: int, ui: int | None) -> None:
        started = processes.start_time(os.getpid())
        assert started is not None
        handle = server.ServerHandle(
            directory=str(self.directory),
            pid=os.getpid(),
            start_time=started,
            port=port,
            session_id=self.session_id,
            ui=f"http://localhost:{ui}" if ui else None,
            code=code_stamp(),
        )
        self.listener.last_beat = time.monotonic()
        _write_whole(self.directory / server.HANDLE_FILE, handle.to_json())

    def _watch(self, jvm: subprocess.Popen[bytes]) -> None:
        while True:
            self._check()
            if jvm.poll() is not None:
                raise _Ended(f"the JVM ended with status {jvm.returncode}")
            now = time.monotonic()
            self.listener.listen(now)
            if now - self.listener.last_beat > self.spec.idle_seconds:
                raise _Ended(f"idle for {self.spec.idle_seconds:g} s")
            time.sleep(_TICK_SECONDS)

    def _finish_recording(self) -> None:
        """Stop the JVM in order if it records an archive, which it writes then; otherwise it is killed, which is
        quicker.
        """
        if self.spec.record is not None and self._jvm is not None:
            self._jvm.terminate()
            self._jvm.wait(timeout=server.START_TIMEOUT)

    def _check(self) -> None:
        if self._stop_requested or (self.directory / server.STOP_FILE).exists():
            raise _Ended("stopped on request")
        if not (self.directory / server.LOCK_FILE).exists():
            raise _Ended("the directory vanished")

    def _clean(self) -> None:
        """Remove the handle first, so that no client attaches to a server that is about to end."""
        for name in (server.HANDLE_FILE, server.TOKEN_FILE, "java.args", server.STOP_FILE):
            (self.directory / name).unlink(missing_ok=True)
        started = processes.start_time(os.getpid())
        assert started is not None
        processes.kill_session(os.getpid(), started)
        shutil.rmtree(self.scratch, ignore_errors=True)
        shutil.rmtree(self.directory / CLIENTS, ignore_errors=True)


def _host_cores() -> int:
    """Return the cores that this process may use, where the system can tell."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _first_useful(text: str) -> str:
    """Return the first line that explains the failure: not a stack frame, not a warning about flags."""
    lines = [line.strip() for line in text.splitlines() if not _USELESS.match(line) and " supervisor " not in line]
    telling = [line for line in lines if "ERROR" in line or "Exception" in line or "Error" in line]
    return next(iter(telling or lines), "it printed nothing")[:300]


def main(argv: list[str]) -> int:
    """Take the lock, then continue in a child: the caller gets "running already" or "started" at once."""
    spec = server.ServerSpec.from_json(argv[0])
    lock = (spec.directory / server.LOCK_FILE).open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return server.ALREADY_RUNNING
    if os.fork():
        os._exit(0)  # the child holds the lock from here on; its parent is init, which reaps it
    os.setsid()
    Supervisor(spec).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
