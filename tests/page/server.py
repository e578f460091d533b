"""The page as users meet it: behind a real Airflow with its real login, asked over HTTP."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from cdr_airflow.die_with_parent import tethered
from tests.support import lanes

ROOT = Path(__file__).resolve().parents[2]
STRANGER = "sam"
"""Somebody who may sign in, but not see our DAGs: ``serving`` says so, as an auth manager with finer roles would."""

ROLES = {"ann": "admin", "uma": "user", "vic": "viewer", STRANGER: "viewer"}
PASSWORD = "opensesame"
PATIENCE_SECONDS = 240.0
COOKIE = "_token"


@dataclass(frozen=True, slots=True)
class PageServer:
    """A running api-server; ``home`` is its ``CDR_HOME``, where the database may come and go."""

    url: str
    home: Path
    process: subprocess.Popen[bytes]
    log: Path
    tokens: dict[str, str] = field(default_factory=dict)

    def wait(self) -> None:
        """Until it answers."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            try:
                if httpx.get(f"{self.url}/api/v2/version", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.2)
        raise AssertionError(f"the api-server did not answer in time: {self.log.read_text()[-4000:]}")

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.home / 'cdr.db'}"

    def token(self, user: str) -> str:
        if user not in self.tokens:
            answer = httpx.post(f"{self.url}/auth/token", json={"username": user, "password": PASSWORD}, timeout=60)
            assert answer.status_code == 201, answer.text
            self.tokens[user] = str(answer.json()["access_token"])
        return self.tokens[user]

    def client(self, user: str | None, *, cookie: bool = True) -> httpx.Client:
        """A caller: signed in by cookie as a browser is, by token as a program is, or not at all."""
        if user is None:
            return httpx.Client(base_url=f"{self.url}/cdr", timeout=60)
        if cookie:
            return httpx.Client(base_url=f"{self.url}/cdr", timeout=60, cookies={COOKIE: self.token(user)})
        headers = {"Authorization": f"Bearer {self.token(user)}"}
        return httpx.Client(base_url=f"{self.url}/cdr", timeout=60, headers=headers)

    def get(self, path: str, user: str | None = "vic", **kwargs: Any) -> httpx.Response:
        with self.client(user) as client:
            return client.get(path, **kwargs)

    def json(self, path: str, user: str | None = "vic") -> Any:
        answer = self.get(path, user)
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextmanager
def running_page(folder: Path, home: Path, *, wait: bool = True, **extra: str) -> Iterator[PageServer]:
    """Start it, wait until it answers (or leave that to the caller), end it; ``extra`` goes into its environment."""
    lanes.require("airflow")
    port = _free_port()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "passwords.json").write_text(json.dumps(dict.fromkeys(ROLES, PASSWORD)))
    log = folder / "server.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            tethered([sys.executable, "-m", "tests.page.serving", str(port)]),
            env=_environment(folder, home, port) | extra,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        server = PageServer(f"http://127.0.0.1:{port}", home, process, log)
        if wait:
            server.wait()
        yield server
    finally:
        process.kill()
        process.wait()


def _environment(folder: Path, home: Path, port: int) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "_AIRFLOW", "CDR_"))}
    return kept | {
        "AIRFLOW_HOME": str(folder),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{folder / 'airflow.db'}",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in ROLES.items()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(folder / "passwords.json"),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of the tests that is long enough to sign with: 0123456789",
        "CDR_HOME": str(home),
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "plugins"), kept.get("PYTHONPATH", ""))),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
