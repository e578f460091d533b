"""Jars from the package registry: Flink's own, and a Java compiler for machines that have none.

They are fetched by pip as it is configured, checked against a hash, and kept in the checkout's ``.cdr/flink``, where
they outlive the homes of tests. Nothing else of a package is kept, and nothing of it is run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cdr" / "flink"

FETCH_SECONDS = 900.0
"""A third of a gigabyte over a slow line."""

_UNREACHABLE = ("NewConnectionError", "Max retries exceeded", "No matching distribution found", "timed out")


class FlinkUnavailable(Exception):
    """What is needed to run Flink cannot be had; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Package:
    """A pinned package and the folder inside of it whose jars are wanted (of some of them: those with this prefix)."""

    name: str
    version: str
    sha256: str
    folder: str
    prefix: str = ""

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}\n"


FLINKS = {
    package.version: package
    for package in (
        Package(
            "apache-flink-libraries",
            "2.3.0",
            "38ece876553286b3a285cf344c2d2038f8a7ca10da5df54d5107250386d64151",
            "pyflink/lib",
        ),
        Package(
            "apache-flink-libraries",
            "2.0.2",
            "64dced9d0324a5f23f84e9cdf444d3fd64632169e477f001c21b422f39b995ba",
            "deps/lib",
        ),
        Package(
            "apache-flink-libraries",
            "1.20.5",
            "e6aee62ea1a1fe7b32e28894ad079f3f1a50a372a4caac3df52405267f4228c8",
            "deps/lib",
        ),
    )
}
COMPILER = (
    Package(  # reports are compiled with it, so it carries the Eclipse compiler, which is one jar and needs no JDK
        "pyreportjasper", "2.1.4", "8923248d64d9093f77cd1e90729d8787185dbf8a576bd91295a2e066f85c6454", "libs", "ecj-"
    )
)


def install(version: str) -> Path:
    """The folder with the jars of this Flink, fetched when it is not there yet."""
    if version not in FLINKS:
        raise FlinkUnavailable(f"Flink {version} is not pinned; the harness knows {', '.join(sorted(FLINKS))}.")
    return fetch(FLINKS[version])


def fetch(package: Package, cache: Path = CACHE) -> Path:
    """The folder with the wanted jars of a package; complete or not there at all."""
    home = cache / f"{package.name}-{package.version}"
    if home.is_dir():
        return home
    with alone("fetch", cache):
        if not home.is_dir():
            with tempfile.TemporaryDirectory(dir=cache, prefix="fetch-") as scratch:
                archive = _download(package, Path(scratch))
                jars = Path(scratch) / "jars"
                _extract(archive, package, jars)
                jars.rename(home)
    return home


@contextmanager
def alone(name: str, cache: Path = CACHE) -> Iterator[None]:
    """Holds off every other process that wants the same; the lock goes with the process, whatever ends it."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(package: Package, scratch: Path) -> Path:
    wanted = scratch / "wanted.txt"
    wanted.write_text(package.requirement)
    options = ["--quiet", "--disable-pip-version-check", "--retries", "2", "--no-deps", "--require-hashes"]
    # An sdist tells its own name by its setup script; what that needs is in the environment already.
    options += ["--no-build-isolation", "--dest", str(scratch), "--requirement", str(wanted)]
    command = [sys.executable, "-m", "pip", "download", *options]
    try:
        done = subprocess.run(
            command, env=_environment(), capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise _unavailable(package, f"it took longer than {FETCH_SECONDS:.0f} s") from None
    if done.returncode != 0:
        raise _unavailable(package, _explain(done.stdout + done.stderr))
    (archive,) = (path for path in scratch.iterdir() if path != wanted)
    return archive


def _environment() -> dict[str, str]:
    """As set-up has it: nothing foreign on the path, the machine's own certificates."""
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONHOME", "PYTHONPATH", "PIP_USER"}}
    if certificates := ssl.get_default_verify_paths().cafile:
        env.setdefault("PIP_CERT", certificates)
    return env


def _explain(output: str) -> str:
    if any(sign in output for sign in _UNREACHABLE):
        return "the package registry could not be reached; check the network, HTTPS_PROXY or PIP_INDEX_URL"
    if "DO NOT MATCH THE HASHES" in output:
        return "the registry has another file than the one that is pinned; do not use it"
    said = [line.strip() for line in output.splitlines() if line.strip()]
    return (said or ["pip said nothing"])[-1].rstrip(".")


def _unavailable(package: Package, reason: str) -> FlinkUnavailable:
    return FlinkUnavailable(f"{package.name} {package.version}, which real-Flink tests need, is not here: {reason}.")


def _extract(archive: Path, package: Package, to: Path) -> None:
    to.mkdir()
    for name, stream in _members(archive):
        path = Path(name)
        if path.suffix == ".jar" and path.name.startswith(package.prefix) and _inside(path, package.folder):
            with stream, (to / path.name).open("wb") as jar:
                shutil.copyfileobj(stream, jar, 1 << 20)
    if not any(to.iterdir()):
        raise _unavailable(package, f"it has no jar in {package.folder}")


def _inside(path: Path, folder: str) -> bool:
    return f"/{path.parent.as_posix()}".endswith(f"/{folder}")


def _members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                yield name, wheel.open(name)
        return
    with tarfile.open(archive) as sdist:
        for member in sdist:
            if (stream := sdist.extractfile(member)) is not None:
                yield member.name, stream
