"""The metadata database of the page: opened once, and reopened after it was unreachable."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated

from fastapi import Depends, Request

from cdr_core import settings
from cdr_core.errors import DatabaseUnavailable, Refused
from cdr_core.metadata import Repository

_SQLITE = "sqlite:///"


class Opened:
    """One repository for all requests. A SQLite file that was removed or replaced is not the one that was opened."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key: tuple[str, int] | None = None
        self._repository: Repository | None = None

    def get(self) -> Repository:
        """Return the repository. Raise ``DatabaseUnavailable`` for any reason."""
        url = settings.load().database_url
        with self._lock:
            key = (url, _identity(url))
            if self._repository is None or key != self._key:
                self._close()
                self._repository, self._key = _open(url), key
            return self._repository

    def _close(self) -> None:
        if self._repository is not None:
            self._repository.close()
        self._repository = self._key = None


def _identity(url: str) -> int:
    if not url.startswith(_SQLITE):
        return 0
    try:
        return Path(url.removeprefix(_SQLITE)).stat().st_ino
    except OSError:
        return -1  # opening it reports the reason


def _open(url: str) -> Repository:
    try:
        return Repository.open(url)
    except Refused as error:
        raise DatabaseUnavailable(error.what, hint=error.hint) from None


def _repository(request: Request) -> Repository:
    opened: Opened = request.app.state.database
    return opened.get()


Rows = Annotated[Repository, Depends(_repository)]
