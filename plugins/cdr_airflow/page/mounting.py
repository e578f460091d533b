"""Mounts the page without loading it: Airflow imports this module in every one of its processes."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from airflow.configuration import conf

PREFIX = "/cdr"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def base_path() -> str:
    """Return the page's path as a browser sees it: Airflow itself may be below a path of its own."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/") + PREFIX


class LazyPage:
    """The page, made at the first request. Processes that never get one never load it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._page: Application | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._made()(scope, receive, send)

    def _made(self) -> Application:
        with self._lock:
            if self._page is None:
                from cdr_airflow.page.app import make_page

                self._page = make_page()
            return self._page
