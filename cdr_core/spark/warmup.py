"""Set-up: make the archive that lets the embedded server start in a third of the time. ``python -m …spark.warmup``

Runs a real server with a real job on the installed Java while the JVM records what it loads, and keeps the recording in
CDR_HOME/java. Done already for this Java, this Spark and these flags: nothing to do. A failure is a warning and exit
status 0: without the archive everything works, but starts more slowly.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cdr_core import settings
from cdr_core.errors import CdrError
from cdr_core.spark import archive
from cdr_core.spark.java import Java, installed_java
from cdr_core.spark.server import ServerSpec, ensure_server, is_supervised, stop_server
from cdr_core.spark.session import open_session
from cdr_core.spark.units import run_units

_RECORDING = ".recording-"

RECORDING_TIMEOUT = 120.0
"""Seconds for the JVM to write the archive; on two quiet cores it takes 10."""


def main() -> int:
    home = settings.load().home
    java = installed_java()
    if java is None or java.major < archive.MINIMUM_JAVA_FOR_ARCHIVE:
        print("spark start-up archive: skipped, the installed Java is missing or too old for one")
        return 0
    target = archive.archive_path(home, java)
    if target.is_file():
        print(f"spark start-up archive: {target} is there")
        return 0
    started = time.monotonic()
    print("spark start-up archive: recording a server's start and first jobs …", flush=True)
    try:
        _share_base_classes(java)
        _record(home, target)
    except (CdrError, OSError, subprocess.SubprocessError) as error:
        print(f"spark start-up archive: warning: not made, the server will start more slowly ({error})")
        return 0
    size = target.stat().st_size >> 20
    print(f"spark start-up archive: {target} made, {size} MiB, {time.monotonic() - started:.0f} s")
    return 0


def _share_base_classes(java: Java) -> None:
    """Make the class archive that every JDK has and the installed Java lacks, inside its installation."""
    if not list((java.home / "lib" / "server").glob("classes*.jsa")):
        subprocess.run([java.executable, "-Xshare:dump"], capture_output=True, timeout=60, check=False)


def _record(home: Path, target: Path) -> None:
    """Record to a temporary name, and rename when it is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target.parent)
    folder = Path(tempfile.mkdtemp(prefix=_RECORDING, dir=target.parent))
    fresh = folder / target.name
    try:
        spec = ServerSpec(directory=folder / "server", home=home, cores=2, record=str(fresh))
        handle = ensure_server(spec)
        with open_session("connect", home=home, handle=handle) as session:
            for _ in range(2):
                run_units(session, nothing, "", ["a", "b", "c"], on_poll=lambda: None)
        stop_server(handle, timeout=2 * RECORDING_TIMEOUT)
        if not fresh.is_file():
            raise CdrError(f"the JVM wrote no archive: {_last_line(handle.log_file)}")
        _remove_older(target)
        fresh.replace(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def nothing(payload: str, unit: str, attempt: int) -> None:
    """The unit of the recorded jobs."""


def _sweep(folder: Path) -> None:
    """Remove files of an interrupted set-up."""
    for old in folder.glob(f"{_RECORDING}*"):
        if not is_supervised(old / "server"):
            shutil.rmtree(old, ignore_errors=True)


def _remove_older(target: Path) -> None:
    """Remove archives of other keys: they can never be used again, and each takes 200 MB."""
    for old in target.parent.glob("server-*"):
        if old.suffix in (".aot", ".broken"):
            old.unlink(missing_ok=True)


def _last_line(log: Path) -> str:
    try:
        return log.read_text(errors="replace").strip().splitlines()[-1]
    except (OSError, IndexError):
        return "its log is empty"


if __name__ == "__main__":
    sys.exit(main())
