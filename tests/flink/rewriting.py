"""Recoveries whose target is a checkpoint that a real Flink restores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoint

NEW_RECORDS = 6000
"""That flow after a restore, before the next checkpoint."""


def recover(source: Path | str, spec: Path, parallelism: str, out: Path | str, **more: Any) -> Mapping[str, Any]:
    """The receipt of a recovery into ``out``."""
    request = RecoveryRequest(str(source), str(spec), parallelism, f"checkpoint:{out}", **more)
    repository, recovery, settings = inline.start(request)
    with repository:
        inline.run_all(repository, recovery, settings)
        receipt = repository.receipt(recovery)
    assert receipt is not None
    return receipt


def in_flight(source: FixtureCheckpoint) -> list[tuple[int, int]]:
    return [(record.gen or 0, record.seq or 0) for record in source.oracle.records]
