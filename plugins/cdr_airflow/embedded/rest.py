"""The calls of Airflow's REST API that the embedded commands use."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from cdr_core.errors import Refused, StorageError

TIMEOUT_SECONDS = 15.0
DAG = "cdr_recover"


@dataclass(frozen=True, slots=True)
class Client:
    """A signed-in user of the Airflow at ``url``."""

    url: str
    token: str

    @classmethod
    def login(cls, url: str, user: str, password: str) -> Client:
        """Sign in, or raise :class:`Refused`."""
        answer = _call("POST", f"{url}/auth/token", None, {"username": user, "password": password})
        return cls(url, str(answer["access_token"]))

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call ``/api/v2/PATH``; raise :class:`Refused` if Airflow refuses, :class:`StorageError` if it does not
        answer.
        """
        return _call(method, f"{self.url}/api/v2/{path}", self.token, body)

    def trigger(self, conf: dict[str, Any]) -> str:
        """Start a run of ``cdr_recover`` and return its id; requests that the form refuses are refused here too."""
        run = self.call("POST", f"dags/{DAG}/dagRuns", {"logical_date": None, "conf": conf})
        return str(run["dag_run_id"])

    def run_state(self, run: str) -> str:
        return str(self.call("GET", f"dags/{DAG}/dagRuns/{quote(run)}")["state"])

    def tasks(self, run: str) -> dict[str, dict[str, Any]]:
        """Each task's row by its id."""
        rows = self.call("GET", f"dags/{DAG}/dagRuns/{quote(run)}/taskInstances")["task_instances"]
        return {row["task_id"]: row for row in rows}


def health(url: str) -> dict[str, str]:
    """Return each part's status; empty while Airflow does not answer."""
    try:
        parts = _call("GET", f"{url}/api/v2/monitor/health", None, None)
    except (Refused, StorageError):
        return {}
    return {name: str(part.get("status")) for name, part in parts.items() if isinstance(part, dict)}


def _call(method: str, url: str, token: str | None, body: Any) -> Any:
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        # A proxy for external addresses must not see calls to this very host.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
            return json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        body_text = error.read().decode(errors="replace")[:500]
        raise Refused(f"Airflow answered {error.code} to {method} {url}: {body_text}") from None
    except (OSError, ValueError) as error:
        raise StorageError(f"Airflow at {url} does not answer: {error}") from None
