"""What becomes of a generation that was replaced: its runner and server stop, its files go."""

from __future__ import annotations

from contextlib import suppress

from cdr_core.errors import CdrError
from cdr_core.metadata import Repository
from cdr_core.runtime.pin_file import unpin
from cdr_core.settings import Settings
from cdr_core.spark.server import find_server, stop_server
from cdr_core.sweep import sweep_recovery


def retire(repository: Repository, recovery_id: str, settings: Settings) -> None:
    """Stop the replaced recovery's Spark server on this host and remove its files.

    Its rows are settled already. What cannot be stopped here is fenced; what cannot be removed now, a sweep removes.
    Output that it prepared in the target stays until a later generation is done: a process that was paused in the
    middle of publishing can wake until then, and must find its files.
    """
    unpin(repository.recovery(recovery_id))
    with suppress(CdrError, OSError):
        running = find_server(settings.home / "spark" / recovery_id)
        if running is not None:
            stop_server(running)
    sweep_recovery(repository, recovery_id, settings)
