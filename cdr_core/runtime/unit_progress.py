"""How far a unit is while it runs: a small object of its own, replaced now and then, that the driver looks at.

Nothing is decided by it, so it need not be durable; a unit that cannot write it goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from cdr_core.errors import CdrError
from cdr_core.metadata.values import UnitProgress
from cdr_core.storage import is_local, join, storage_for

if TYPE_CHECKING:
    from cdr_core.runtime.unit_runner import Job

WRITE_SECONDS = 0.5
WRITE_SECONDS_AFAR = 3.0
"""On S3, where every write is a request that costs money, and the unit waits for it."""
RUNNING = "running"


def unit_of(name: str) -> str:
    """The unit that an executor's try is at: its name with what the try drew for itself taken off."""
    return name.rpartition("-")[0]


class Meter:
    """Counts what a unit has done and says so now and then, with the time that the rest takes at this pace.

    ``total`` = bytes when it is done, about; ``records`` and ``size`` = what was done before this try began.
    """

    def __init__(
        self, job: Job, unit: str, total: int, records: int = 0, size: int = 0, clock: Callable[[], float] | None = None
    ) -> None:
        self._uri = join(job.directory, RUNNING, unit)
        self._total, self._before = total, size
        self._records, self._bytes = records, size
        self._every = WRITE_SECONDS if is_local(self._uri) else WRITE_SECONDS_AFAR
        self._clock = clock or time.monotonic
        self._begun = self._clock()
        self._next = 0.0
        self._say()

    def add(self, records: int, size: int) -> None:
        """So much more is done."""
        self._records += records
        self._bytes += size
        self._say()

    def at(self, done: Callable[[], tuple[int, int]]) -> None:
        """(records, bytes) that are done by now; asked for only when it is time to say so."""
        if self._clock() >= self._next:
            self._records, self._bytes = done()
            self._say()

    def _say(self) -> None:
        now = self._clock()
        if now < self._next:
            return
        self._next = now + self._every
        moved, rest = self._bytes - self._before, max(self._total - self._bytes, 0)
        eta = round((now - self._begun) * rest / moved, 1) if moved > 0 else None
        value = UnitProgress(self._records, self._bytes, self._total, eta).to_json()
        with suppress(CdrError, OSError):
            storage_for(self._uri).replace(self._uri, json.dumps(value).encode())


def read_meters(job: Job) -> dict[str, UnitProgress]:
    """How far each unit said it is; whatever cannot be read is left out."""
    directory = join(job.directory, RUNNING)
    found: dict[str, UnitProgress] = {}
    with suppress(CdrError, OSError):
        for uri in storage_for(directory).list(directory):
            with suppress(CdrError, ValueError, TypeError):
                found[uri.rpartition("/")[2]] = UnitProgress(*json.loads(storage_for(uri).read(uri)))
    return found
