"""Make .venv what requirements.lock says: nothing unpinned, nothing without a hash, one line per step.

Runs on a bare Python, before anything is installed. The stamp is written last, so the next set-up continues one
that was interrupted; every step is safe to repeat. A failure is one sentence and exit status 1; .venv/setup.log
has the output of the tools.
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lockfile import Pin, read_lock
from steps import Failed, run, say

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "setup.stamp"
LOG = VENV / "setup.log"

WARM_UP_SECONDS = 300.0
"""The warm-up only saves time later, so it may not cost more than it can give back."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Set up .venv from requirements.lock.")
    parser.add_argument("--replace", action="store_true", help="this very Python was asked for: replace any other")
    try:
        with _alone():
            _set_up(replace=parser.parse_args().replace)
    except Failed as failure:
        say(f"{failure}.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("interrupted; the next one goes on from here.", file=sys.stderr)
        return 130
    return 0


@contextmanager
def _alone() -> Iterator[None]:
    """Holds off a second set-up of this checkout; the lock goes with the process, whatever ends it."""
    with Path(__file__).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this checkout")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _set_up(*, replace: bool) -> None:
    keep = _can_stay(replace=replace)
    if keep and STAMP.is_file() and STAMP.read_text() == _stamp():
        say(f".venv is up to date (Python {_venv_version()})")
        return
    begun = time.monotonic()
    STAMP.unlink(missing_ok=True)
    steps = _steps(create=not keep)
    for number, (words, work) in enumerate(steps, start=1):
        say(f"{number}/{len(steps)} {words}")
        since = time.monotonic()
        work()
        say(f"{number}/{len(steps)} took {time.monotonic() - since:.1f} s")
    STAMP.write_text(_stamp())
    say(f"done in {time.monotonic() - begun:.1f} s")


def _steps(*, create: bool) -> list[tuple[str, Callable[[], None]]]:
    pins = read_lock(LOCK)
    steps: list[tuple[str, Callable[[], None]]] = [
        (f"installing uv {pins['uv'][0].version}, which installs the rest", lambda: _install_uv(pins["uv"])),
        (
            f"installing {len(pins)} packages from requirements.lock (about 1 GB to fetch the first time)",
            lambda: _sync(pins),
        ),
        ("installing cdr itself, editable", _install_project),
        ("compiling the kernels", _compile_kernels),
        ("warming up Spark's Java", _warm_up),
    ]
    if create:
        steps.insert(0, (f"creating .venv with Python {platform.python_version()}", _create))
    return steps


# --- the environment that is there ----------------------------------------------------------------------------------


def _can_stay(*, replace: bool) -> bool:
    """Whether the environment can be kept: its Python is there, it was made in this folder, it is the one wanted."""
    if not PYTHON.exists() or not (VENV / "pyvenv.cfg").is_file():
        return False
    if STAMP.is_file() and STAMP.read_text().split()[-1:] != [_place()]:
        return False
    return not replace or _venv_version() == platform.python_version()


def _venv_version() -> str:
    match = re.search(r"^version\s*=\s*(\S+)", (VENV / "pyvenv.cfg").read_text(), re.MULTILINE)
    return match.group(1) if match else "unknown"


def _stamp() -> str:
    """What the environment was made from, and where."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    ours = [pyproject["build-system"], pyproject["project"], pyproject["tool"]["hatch"]]
    parts = (LOCK.read_bytes(), Path(__file__).read_bytes(), json.dumps(ours).encode())
    digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
    return f"{digest} {_venv_version()} {_place()}\n"


def _place() -> str:
    """The folder, hashed. Scripts of an environment name their own path, so one that was moved has to be made anew."""
    return hashlib.sha256(os.fsencode(VENV)).hexdigest()[:16]


# --- the steps ------------------------------------------------------------------------------------------------------


def _create() -> None:
    if VENV.exists():
        shutil.rmtree(VENV)
    VENV.mkdir()
    # This process may run on the environment just removed; the Python that made it is still there.
    base = getattr(sys, "_base_executable", None) or sys.executable
    _run("creating .venv", base, "-m", "venv", str(VENV))


def _install_uv(pins: list[Pin]) -> None:
    uv = VENV / "bin" / "uv"
    if uv.exists():
        answer = subprocess.run([uv, "--version"], capture_output=True, text=True, check=False).stdout
        if answer.split()[1:2] == [pins[0].version]:
            return
    if not (VENV / "bin" / "pip").exists():
        _run("putting pip back", str(PYTHON), "-m", "ensurepip")
    options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes", "--only-binary", ":all:")
    with _requirements(pins) as file:
        _run("installing uv", str(PYTHON), "-m", "pip", "install", *options, "--retries", "2", "-r", file)


def _sync(pins: dict[str, list[Pin]]) -> None:
    # pyspark is published as source only; what builds it comes out of the same lock, hash and all.
    with _requirements(pins["setuptools"]) as builders:
        _uv("installing the packages", "sync", "--require-hashes", "--build-constraints", builders, str(LOCK))


def _install_project() -> None:
    _uv("installing cdr itself", "install", "--no-deps", "--no-build-isolation", "--no-index", "--editable", str(ROOT))


def _compile_kernels() -> None:
    _run("compiling the kernels", str(PYTHON), "-m", "cdr_core.recovery.kernel_warmup", seconds=WARM_UP_SECONDS)


def _warm_up() -> None:
    if os.environ.get("WARM_UP") == "no":
        say("    left out, as WARM_UP=no asks; Spark starts more slowly")
        return
    try:
        _run("warming up", str(PYTHON), "-m", "cdr_core.spark.warmup", seconds=WARM_UP_SECONDS)
    except Failed as failure:
        say(f"    warning: {failure}; everything works, only Spark starts more slowly")


# --- running tools --------------------------------------------------------------------------------------------------


def _uv(doing: str, verb: str, *arguments: str) -> None:
    _run(doing, str(VENV / "bin" / "uv"), "pip", verb, "--python", str(PYTHON), *arguments)


def _run(doing: str, *command: str, seconds: float = 3600.0) -> None:
    run(doing, command, env=environment(), log=LOG, seconds=seconds)


@contextmanager
def _requirements(pins: list[Pin]) -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w", prefix="cdr-", suffix=".txt") as file:
        file.write("".join(pin.text for pin in pins))
        file.flush()
        yield file.name


def environment() -> dict[str, str]:
    """The caller's environment without what would pull in foreign packages, and with the registry pip would use."""
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONHOME", "PYTHONPATH", "PIP_USER"}}
    env.setdefault("UV_HTTP_TIMEOUT", "120")
    bundle = ssl.get_default_verify_paths()
    if bundle.cafile or bundle.capath or sys.platform == "darwin":
        env.setdefault("UV_SYSTEM_CERTS", "1")
    if bundle.cafile:
        env.setdefault("PIP_CERT", bundle.cafile)
    return _as_pip_is_configured(env)


def _as_pip_is_configured(env: dict[str, str]) -> dict[str, str]:
    """uv does not read pip's configuration; where a company's mirror or certificate is named only there, pass it on."""
    if not (VENV / "bin" / "pip").exists():
        return env
    listed = subprocess.run(
        [PYTHON, "-m", "pip", "config", "list"], env=env, capture_output=True, text=True, check=False
    )
    for line in listed.stdout.splitlines():
        key, _, value = line.partition("=")
        name = {"index-url": "UV_DEFAULT_INDEX", "cert": "SSL_CERT_FILE"}.get(key.rpartition(".")[2])
        if name:
            env.setdefault(name, ast.literal_eval(value))
    return env


if __name__ == "__main__":
    raise SystemExit(main())
