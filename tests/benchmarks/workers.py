"""Who does the units of a recovery that is measured: processes of our own, or one warm Spark server."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cdr_core.errors import JobFailed
from cdr_core.runtime.executor_backend import CONNECT
from cdr_core.runtime.unit_runner import run_unit
from cdr_core.settings import Settings
from cdr_core.spark.daemon import ENVIRONMENT
from cdr_core.spark.server import ServerSpec, start_server, stop_server, wait_ready
from cdr_core.spark.session import open_session
from cdr_core.spark.units import run_units
from tests.benchmarks.figures import seconds
from tests.benchmarks.worker import nothing

if TYPE_CHECKING:
    from cdr_core.runtime.driver import PhaseRun

ROOT = Path(__file__).resolve().parents[2]
SAMPLE_SECONDS = 0.01
POLL_SECONDS = 0.02


class ProcessWorkers:
    """A :class:`cdr_core.runtime.executor_backend.Workers` of processes, a unit at a time each; 0 = this process.

    ``busy`` is what the units took by themselves, ``wall`` how long the jobs ran; both grow from phase to phase.
    ``peak`` is the most that one of the processes held: anonymous and shared memory, in bytes; ``idle`` what it held
    when it was warm and had done nothing.
    """

    def __init__(self, count: int = 1) -> None:
        self.busy = self.wall = 0.0
        self.peak = self.idle = 0
        self._children = [_child() for _ in range(count)]
        self._free: queue.Queue[subprocess.Popen[str]] = queue.Queue()
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        for child in self._children:
            _answer(child)
            self._free.put(child)
        self.idle = max(held(pid) for pid in self._processes)
        self._sampler.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._sampler.join()
        for child in self._children:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()

    @property
    def _processes(self) -> list[int]:
        return [child.pid for child in self._children] or [os.getpid()]

    def bytes_read(self) -> int:
        """Bytes that the processes have read by system calls so far, from a disk or its cache."""
        texts = (Path(f"/proc/{pid}/io").read_text() for pid in self._processes)
        return sum(int(text.partition("rchar: ")[2].split()[0]) for text in texts)

    def start(self, drive: PhaseRun) -> None:
        """They run already."""

    def end(self, drive: PhaseRun) -> None:
        """They end with the benchmark."""

    def run(self, drive: PhaseRun, payload: str, units: Sequence[str], on_poll: Callable[[], None]) -> None:
        begun = time.perf_counter()
        with ThreadPoolExecutor(len(self._processes)) as pool:
            jobs = [pool.submit(self._do, payload, unit) for unit in units]
            try:
                while not all(job.done() for job in jobs):
                    on_poll()
                    time.sleep(POLL_SECONDS)
            except BaseException:
                for child in self._children:
                    child.kill()
                pool.shutdown(cancel_futures=True)
                raise
        on_poll()
        self.busy += sum(job.result() for job in jobs)
        self.wall += time.perf_counter() - begun

    def _do(self, payload: str, unit: str) -> float:
        if not self._children:
            return seconds(lambda: run_unit(payload, unit, 0))
        child = self._free.get()
        try:
            assert child.stdin is not None
            child.stdin.write(json.dumps({"payload": payload, "unit": unit}) + "\n")
            child.stdin.flush()
            return float(_answer(child)["seconds"])
        finally:
            self._free.put(child)

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            self.peak = max([self.peak, *(held(pid) for pid in self._processes)])


def _child() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.benchmarks.worker"]
    environment = {**ENVIRONMENT, **os.environ}  # as Spark's workers have it
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _answer(child: subprocess.Popen[str]) -> dict[str, Any]:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise JobFailed("a worker process of the benchmark died")
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise JobFailed(answer["error"])
    return answer


def held(pid: int) -> int:
    """RssAnon + RssShmem of a process, in bytes; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


class SessionWorkers:
    """A :class:`cdr_core.runtime.executor_backend.Workers` on one warm session; the last job had ``units`` of them."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.units = 0

    def start(self, drive: PhaseRun) -> None:
        """It runs already."""

    def end(self, drive: PhaseRun) -> None:
        """It ends with the benchmark."""

    def run(self, drive: PhaseRun, payload: str, units: Sequence[str], on_poll: Callable[[], None]) -> None:
        self.units = len(units)
        run_units(self._session, run_unit, payload, units, on_poll=on_poll)

    def empty(self) -> float:
        """Seconds of a job of as many units as the last one that do nothing: what Spark takes for itself."""
        units = [str(number) for number in range(self.units)]
        return seconds(lambda: run_units(self._session, nothing, "", units, on_poll=lambda: None))


@contextmanager
def spark(settings: Settings) -> Iterator[SessionWorkers]:
    """The embedded server as recoveries start it, on two cores, warm."""
    spec = ServerSpec(
        settings.home / "spark" / "bench", settings.home, cores=2, preload=("cdr_core.recovery.kernel_warmup",)
    )
    start_server(spec)
    handle = wait_ready(spec)
    try:
        with open_session(CONNECT, home=settings.home, handle=handle) as session:
            workers = SessionWorkers(session)
            workers.units = 4
            for _ in range(3):
                workers.empty()
            yield workers
    finally:
        stop_server(handle)
