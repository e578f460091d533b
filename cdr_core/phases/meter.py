"""How far a unit is while it runs: a small object of its own, replaced now and then, that the driver looks at.

Nothing is decided by it, so it need not be durable; a unit that cannot write it goes on.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from cdr_core.errors import CdrError
from cdr_core.storage import is_local, join, storage_for

if TYPE_CHECKING:
    from cdr_core.phases.unit import Job

WRITE_SECONDS = 0.5
WRITE_SECONDS_AFAR = 3.0
"""On S3, where every write is a request that somebody pays for, and the unit waits for it."""
RUNNING = "running"


class Meter:
    """Counts what a unit has done and says so now and then."""

    def __init__(self, job: Job, unit: str, records: int = 0, size: int = 0) -> None:
        self._uri = join(job.directory, RUNNING, unit)
        self._records, self._bytes = records, size
        self._every = WRITE_SECONDS if is_local(self._uri) else WRITE_SECONDS_AFAR
        self._next = 0.0

    def add(self, records: int, size: int) -> None:
        self._records += records
        self._bytes += size
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every
            with suppress(CdrError, OSError):
                storage_for(self._uri).replace(self._uri, json.dumps([self._records, self._bytes]).encode())


def read_meters(job: Job) -> dict[str, tuple[int, int]]:
    """(records, bytes) by unit; whatever cannot be read is left out."""
    directory = join(job.directory, RUNNING)
    found: dict[str, tuple[int, int]] = {}
    with suppress(CdrError, OSError):
        for uri in storage_for(directory).list(directory):
            with suppress(CdrError, ValueError):
                records, size = json.loads(storage_for(uri).read(uri))
                found[uri.rpartition("/")[2]] = (int(records), int(size))
    return found
