"""A web hook of a test's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any


class Alerts:
    """What was posted to it."""

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        alerts = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                alerts.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Not on the test's screen."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/hook"

    @classmethod
    @contextmanager
    def open(cls) -> Iterator[Alerts]:
        alerts = cls()
        try:
            yield alerts
        finally:
            alerts.server.shutdown()
