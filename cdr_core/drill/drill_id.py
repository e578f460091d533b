"""The name of a drill. Apart from the rest, because a look-up needs nothing else."""

from __future__ import annotations

import hashlib


def drill_id_of(run: str) -> str:
    """The id of the drill of a run, however often it is tried."""
    return f"d-{hashlib.sha256(run.encode()).hexdigest()[:16]}"
