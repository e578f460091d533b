"""A real Spark standalone cluster from the pip package: a master, and workers that share nothing by accident.

Where the machine allows (root, ``unshare``), each worker lives in a mount namespace of its own, in which the directory
for temporary files and everything that the tests write are empty. Elsewhere workers differ by their directories only.

``python -m tests.support.cluster MASTER HIDDEN…`` is such a worker, inside its namespace.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from cdr_core.spark.java import java_home
from cdr_core.spark.launch import JVM_FLAGS, class_path
from tests.support import lanes
from tests.support.s3 import _free_ports

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 90.0
EXECUTOR = "CoarseGrainedExecutorBackend"
MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
PRIVATE = "cdr-worker"
"""The worker's own directory, below the one for temporary files."""
OWN = "{own}"
"""Stands for that directory in the environment of a worker."""


@dataclass
class Cluster:
    """``url`` for CDR_SPARK; ``hidden`` = where workers see nothing of what others wrote, empty if that cannot be."""

    url: str
    folder: Path
    hidden: list[str]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def executors(self) -> list[psutil.Process]:
        """The executors' Java processes."""
        started = [each for worker in self.workers for each in psutil.Process(worker.pid).children(recursive=True)]
        return [process for process in started if EXECUTOR in " ".join(command(process))]

    def seen_by(self, worker: int, path: Path) -> Path:
        """What a worker has at a path."""
        return Path(f"/proc/{self.workers[worker].pid}/root", *path.parts[1:])

    def own(self, worker: int) -> Path:
        """The worker's own directory in its namespace."""
        return self.seen_by(worker, Path(self.hidden[0], PRIVATE))


def command(process: psutil.Process) -> list[str]:
    """Its command line; empty once it is gone."""
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def can_hide() -> bool:
    """Whether this process may make mount namespaces."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    probe = ["unshare", "--mount", "--propagation", "private", "mount", "-t", "tmpfs", "none", tempfile.gettempdir()]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@contextmanager
def running_cluster(folder: Path, environment: Mapping[str, str], workers: int = 2) -> Iterator[Cluster]:
    """A cluster whose workers have ``environment`` and no setting of cdr besides; it ends with the block."""
    lanes.require("spark")
    with ExitStack() as stack:
        port = _free_ports(1)[0]
        cluster = Cluster(f"spark://127.0.0.1:{port}", folder, _hidden(folder) if can_hide() else [])
        own = {name: value for name, value in os.environ.items() if not name.startswith(("CDR_", "AWS_"))}
        own |= {"JAVA_HOME": str(java_home(folder)), "SPARK_LOCAL_IP": "127.0.0.1"}
        log = folder / "master.log"
        master = [*_java(own["JAVA_HOME"], MASTER), "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        leader = _start(master, own, log)
        stack.callback(_end, leader)
        _wait_for(leader, log, "I have been elected leader")
        for number in range(workers):
            log = folder / f"worker-{number}.log"
            command = [sys.executable, "-m", "tests.support.cluster", cluster.url, str(folder / f"worker-{number}")]
            if cluster.hidden:
                hide = ["unshare", "--mount", "--propagation", "private"]
                command = [*hide, *command, *cluster.hidden]
            cluster.workers.append(_start(command, {**own, **environment}, log))
            stack.callback(_end, cluster.workers[-1])
        for number, worker in enumerate(cluster.workers):
            _wait_for(worker, folder / f"worker-{number}.log", "Successfully registered with master")
        yield cluster


def _hidden(folder: Path) -> list[str]:
    """What a worker must not see: temporary files, unless the code itself lies among them."""
    needed = [ROOT, Path(sys.prefix), Path(sys.executable).resolve()]
    found = {folder.parent, Path(tempfile.gettempdir()).resolve()}
    usable = [place for place in sorted(found) if not any(path.is_relative_to(place) for path in needed)]
    inner = [place for place in usable if any(place != other and place.is_relative_to(other) for other in usable)]
    return [str(place) for place in usable if place not in inner]


def _java(home: str, main: str) -> list[str]:
    return [f"{home}/bin/java", "-cp", class_path(), "-Xmx256m", *JVM_FLAGS, main]


def _start(command: list[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment, cwd=ROOT, start_new_session=True
        )


def _wait_for(process: subprocess.Popen[bytes], log: Path, text: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while text not in log.read_text():
        waiting = process.poll() is None and time.monotonic() < deadline
        assert waiting, f"the cluster did not start: {log.read_text()[-3000:]}"
        time.sleep(0.1)


def _end(process: subprocess.Popen[bytes]) -> None:
    """It and everything it started: executors and Python workers have sessions of their own."""
    started = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for each in started:
        try:
            each.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
    process.wait()


def main(master: str, directory: str, *hidden: str) -> None:
    """Become a worker. A tmpfs lies over every place that is to be hidden, the worker's own directory in the first."""
    for place in hidden:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "none", place], check=True)
    own = Path(hidden[0], PRIVATE) if hidden else Path(directory)
    for name in ("home", "work", "local", "tmp"):
        (own / name).mkdir(parents=True)
    os.environ |= {name: value.replace(OWN, str(own)) for name, value in os.environ.items() if OWN in value}
    os.environ |= {
        "CDR_HOME": str(own / "home"),
        "JAVA_HOME": str(java_home(own)),
        "SPARK_HOME": str(Path(class_path().split(":")[0]).parents[1]),
        "SPARK_SCALA_VERSION": "2.13",  # what spark-class would have found out, for the command of an executor
        "SPARK_LOCAL_DIRS": str(own / "local"),
        "TMPDIR": str(own / "tmp"),
    }
    options = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"]
    command = [*_java(os.environ["JAVA_HOME"], WORKER), *options, "--work-dir", str(own / "work"), master]
    os.execv(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
