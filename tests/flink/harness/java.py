"""Java: the harness's own programs, compiled once per Flink, and one JVM at a time that always ends."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from cdr_core.spark.java import Java, installed_java, machine_java
from tests.flink.harness.packages import CACHE, COMPILER, FlinkUnavailable, alone, fetch, install
from tests.support import lanes

SOURCES = Path(__file__).resolve().parents[1] / "java"

NEWEST = "2.3.0"
"""Reads the metadata of all versions, so the oracle is compiled for it alone."""

_LANGUAGE = "11"
"""Of the sources: what the oldest compiler in question understands and Flink 1.20 runs."""

_OPENED = ("java.lang", "java.net", "java.nio", "java.time", "java.util", "java.util.concurrent", "sun.nio.ch")
"""Packages of java.base that Flink reaches into by reflection, as its own start scripts allow it to."""

_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",  # a run lasts seconds: the second compiler would only take the cores
    "-Xshare:auto",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
)


class FlinkFailed(Exception):
    """A program in the JVM failed; the message ends with what it said last."""


def run(version: str, program: str, arguments: Iterable[str], seconds: float, memory: str = "1g") -> list[str]:
    """Runs a program on the jars of this Flink; the lines it printed. One JVM at a time, machine-wide per checkout.

    ``memory`` is what it has of heap, and again of memory outside of it.
    """
    lanes.require("flink")
    classes = compiled(version)
    path = os.pathsep.join([str(SOURCES), str(classes), *map(str, _jars(install(version)))])
    with alone("jvm"), tempfile.TemporaryDirectory(prefix="cdr-flink-") as scratch:
        room = (f"-Xmx{memory}", f"-XX:MaxDirectMemorySize={memory}")
        own = (*room, f"-Djava.io.tmpdir={scratch}", f"-Dlog4j2.configurationFile={SOURCES / 'log4j2.properties'}")
        command = [str(_java().executable), *_FLAGS, *own, "-cp", path, program, *arguments]
        return _run(command, scratch, program, seconds)


def compiled(version: str) -> Path:
    """The folder with the harness's classes for this Flink."""
    sources = _sources(version)
    digest = hashlib.sha256(version.encode())
    for source in sources:
        digest.update(source.read_bytes())
    home = CACHE / f"classes-{version}-{digest.hexdigest()[:16]}"
    if home.is_dir():
        return home
    jars = os.pathsep.join(map(str, _jars(install(version))))
    options = ["-nowarn", "-proc:none", "-encoding", "UTF-8", "-source", _LANGUAGE, "-target", _LANGUAGE, "-cp", jars]
    with alone("compile"), tempfile.TemporaryDirectory(dir=CACHE, prefix="compile-") as scratch:
        if not home.is_dir():
            fresh = Path(scratch) / "classes"
            _run([*_compiler(), *options, "-d", str(fresh), *map(str, sources)], scratch, "the Java compiler", 120)
            fresh.rename(home)
    return home


def _sources(version: str) -> list[Path]:
    return [path for path in sorted(SOURCES.rglob("*.java")) if version == NEWEST or path.parent == SOURCES / "cdr"]


def _jars(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jar"))


def _java() -> Java:
    java = machine_java() or installed_java()
    if java is None:
        raise FlinkUnavailable("Real-Flink tests need Java 17 or later, which set-up installs; make setup repairs it.")
    return java


def _compiler() -> list[str]:
    """javac of the machine's Java; else the Eclipse compiler, which runs on the Java that set-up installs."""
    machine = machine_java()
    beside = [str(machine.home / "bin")] if machine else []
    javac = shutil.which("javac", path=os.pathsep.join([*beside, os.environ.get("PATH", "")]))
    if javac:
        return [javac]
    (ecj,) = _jars(fetch(COMPILER))
    return [str(_java().executable), "-jar", str(ecj)]


def _run(command: list[str], scratch: str, what: str, seconds: float) -> list[str]:
    with (
        (Path(scratch) / "stderr").open("w+") as said,
        subprocess.Popen(
            command,
            cwd=scratch,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
        ) as process,
    ):
        try:
            out, _ = process.communicate(timeout=seconds)
            fate = f"failed with exit status {process.returncode}"
        except subprocess.TimeoutExpired:
            fate = f"took longer than {seconds:g} s"
        finally:
            if process.poll() is None:  # also when a test is interrupted
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode != 0:
            said.seek(0)
            raise FlinkFailed(f"{what} {fate}; it said last: {said.read()[-4000:]}")
    return out.splitlines()
