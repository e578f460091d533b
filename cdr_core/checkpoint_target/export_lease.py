"""The lease of an export: it keeps the spill sets that the export reads, and ends with either a checkpoint
or nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from cdr_core.errors import CdrError, JobFailed
from cdr_core.metadata import Export, Repository, SpillSet
from cdr_core.spill.set_cleanup import delete_released
from cdr_core.sweep.exports import remove_remains

LEASE_SECONDS = 600.0
"""Seconds for which the sets of a killed export are kept; a running export renews its lease many times before."""
RENEWALS = 10


@contextmanager
def holding(
    repository: Repository, recovery_id: str, export: Export
) -> Iterator[tuple[tuple[SpillSet, ...], Callable[[], None]]]:
    """Yield the sealed sets and ``check_lease()``, which raises if the lease expired.

    After an error no file of the export is left, unless it cannot be removed, which is left to a sweep.
    """
    sets = repository.begin_export(recovery_id, export, LEASE_SECONDS)

    def renew() -> None:
        if not repository.renew_export(recovery_id, export.name, LEASE_SECONDS):
            raise JobFailed(
                f"the export to {export.directory} lost its lease: it did not renew it for {LEASE_SECONDS:.0f} s",
                hint="export it again",
            )

    over = threading.Event()
    thread = threading.Thread(target=_renewing, args=(renew, over), name="cdr-export-lease", daemon=True)
    thread.start()
    try:
        yield sets, renew
    except BaseException:
        _stop(thread, over)
        with suppress(CdrError, OSError):
            remove_remains(repository, recovery_id, export)
            _end(repository, recovery_id, export)
        raise
    _stop(thread, over)
    with suppress(CdrError, OSError):
        _end(repository, recovery_id, export)


def _renewing(renew: Callable[[], None], over: threading.Event) -> None:
    while not over.wait(LEASE_SECONDS / RENEWALS):
        with suppress(CdrError):  # the database may be back before the lease ends
            renew()


def _stop(thread: threading.Thread, over: threading.Event) -> None:
    over.set()
    thread.join()


def _end(repository: Repository, recovery_id: str, export: Export) -> None:
    repository.end_export(recovery_id, export.name)
    delete_released(repository, recovery_id)
