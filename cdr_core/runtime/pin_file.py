"""The pin of a source checkpoint as others can see it: a file beside its directory that names the recovery.

Flink and people who tidy up do not look into our database. The file is advice and nothing relies on it, so a place that
cannot be written is no obstacle. It lies beside the checkpoint and not in it: Flink removes a checkpoint's directory
only when it is empty, and the source is never changed. Only the recovery that is named in it removes it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cdr_core.errors import Cancelled, CdrError, Replaced
from cdr_core.storage import storage_for

if TYPE_CHECKING:
    from cdr_core.metadata import Attempt, Phase, Recovery, Repository, Runner

VERSION = 1


def pin_file_of(checkpoint: str, recovery_id: str) -> str:
    """``…/chk-42`` is pinned by ``…/chk-42.cdr-pin-RECOVERY``."""
    return f"{checkpoint.rstrip('/')}.cdr-pin-{recovery_id}"


def pin(recovery: Recovery) -> bool:
    """Whether the file is there now. It is created exclusively; one that is there already stays as it is."""
    uri = recovery.settings.pin_file
    if not uri:
        return False
    value = {
        "version": VERSION,
        "recovery": recovery.id,
        "checkpoint": recovery.source.uri,
        "says": "a recovery of cdr reads this checkpoint; it removes this file when it has ended",
    }
    try:
        storage_for(uri).create(uri, json.dumps(value, indent=1).encode())
    except (CdrError, OSError):
        return False
    return True


def begin(repository: Repository, recovery_id: str, phase: Phase, runner: Runner) -> Attempt | None:
    """As ``Repository.begin_attempt``. Where nothing is left to do, the attempt that ended the recovery may have died
    before it removed the file, so that is done here.
    """
    try:
        attempt = repository.begin_attempt(recovery_id, phase, runner)
    except (Cancelled, Replaced):
        unpin(repository.recovery(recovery_id))
        raise
    recovery = repository.recovery(recovery_id)
    if attempt is None and recovery.state.is_final:
        unpin(recovery)
    return attempt


def unpin(recovery: Recovery) -> bool:
    """Remove the file of a recovery that has ended; whether it was there and ours. What cannot go now stays."""
    uri = recovery.settings.pin_file
    if not uri:
        return False
    try:
        if json.loads(storage_for(uri).read(uri)).get("recovery") != recovery.id:
            return False
        storage_for(uri).delete(uri)
    except (CdrError, OSError, ValueError, AttributeError):
        return False
    return True
