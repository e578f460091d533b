"""Prepares a home: configuration, both databases, the shipped checkpoint. Done once, checked in milliseconds."""

from __future__ import annotations

import fcntl
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from cdr_airflow.demo_checkpoint import shipped
from cdr_airflow.embedded import config
from cdr_airflow.embedded.console import Console
from cdr_airflow.embedded.home import Home, keep_secrets, write_private
from cdr_core import settings
from cdr_core.errors import CdrError, Refused

PREFERRED_PORT = 8080


@contextmanager
def locked(home: Home, doing: str) -> Iterator[None]:
    """Keep other processes from starting, stopping or running something here; refuse rather than wait."""
    home.airflow.mkdir(parents=True, exist_ok=True)
    with home.lock.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            busy = lock.read().strip() or "something"
            raise Refused(
                f"{doing} has to wait: {busy} is running in {home.root}", hint="try again when it is over"
            ) from None
        lock.truncate(0)
        lock.write(doing)
        lock.flush()
        yield


def prepare(home: Home, port: int, console: Console) -> None:
    """Make everything that the processes of this Airflow need before the first of them starts."""
    prepare_airflow(home, port, console)
    prepare_cdr(home, console)


def prepare_airflow(home: Home, port: int, console: Console) -> None:
    """Prepare Airflow's configuration and database."""
    home.run.mkdir(parents=True, exist_ok=True)
    write_private(home.config, config.render(config.sections(home, port, keep_secrets(home))))
    _migrate_airflow(home, console)


def prepare_cdr(home: Home, console: Console) -> None:
    """Prepare the metadata database and the shipped checkpoint."""
    _migrate_cdr(console)
    shipped(home.root).unpack()


def _migrate_airflow(home: Home, console: Console) -> None:
    wanted = version("apache-airflow-core")
    if home.database.is_file() and home.migrated.is_file() and home.migrated.read_text() == wanted:
        return
    with console.step("Setting up Airflow's database (once, about ten seconds)"):
        log = home.airflow / "migrate.log"
        _run_airflow(home, ["db", "migrate"], log)
    home.migrated.write_text(wanted)


def _run_airflow(home: Home, arguments: list[str], log: Path) -> None:
    with log.open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *arguments],
            env=home.environment(),
            cwd=home.airflow,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        raise CdrError(f"airflow {' '.join(arguments)} failed", hint=f"its output is in {log}")


def _migrate_cdr(console: Console) -> None:
    from cdr_core.metadata import migrate

    url = settings.load().database_url
    try:
        if migrate.current_revision(url) == migrate.HEAD:
            return
    except Refused:
        # No file yet: the first start.
        pass
    with console.step("Setting up cdr's own database"):
        migrate.upgrade(url)


def choose_port(requested: int | None) -> int:
    """Return the requested port (0: any) or refuse it; without a request the usual one, or any free one."""
    if requested:
        if not _is_free(requested):
            raise Refused(f"port {requested} is taken", hint="choose another with --port, or leave it out")
        return requested
    return PREFERRED_PORT if requested is None and _is_free(PREFERRED_PORT) else _any_free()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((config.LOOPBACK, port))
        except OSError:
            return False
        return True


def _any_free() -> int:
    with socket.socket() as probe:
        probe.bind((config.LOOPBACK, 0))
        return int(probe.getsockname()[1])
