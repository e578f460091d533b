"""What the tests do again and again."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from typing import Any

from cdr_core.metadata import (
    Attempt,
    NewRecovery,
    Phase,
    Prepared,
    RecoveryOptions,
    RecoverySettings,
    Repository,
    Runner,
)

_runs = itertools.count(1)

PROOF = {"version": 1, "ledgers": {}}
PROOF_SHA256 = hashlib.sha256(json.dumps(PROOF, sort_keys=True).encode()).hexdigest()
USER = "cdr-user"


def new_recovery(**changes: Any) -> NewRecovery:
    new = NewRecovery(
        source="/checkpoints/chk-7",
        metadata_sha256="ab" * 32,
        target="parquet:/out",
        spec="job: x",
        parallelism="2",
        workspace="/workspace",
        flink_checkpoint_id=7,
        options=RecoveryOptions(on_corrupt="fail"),
        settings=RecoverySettings(checkpoint_interval="10s"),
        host_id="host-1",
    )
    return dataclasses.replace(new, **changes)


def runner(try_number: int = 1, run: str | None = None, task: str = "task") -> Runner:
    return Runner(run or f"run-{next(_runs)}", task, try_number, "host-1", 4711)


def begin(repository: Repository, recovery_id: str, phase: Phase) -> Attempt:
    attempt = repository.begin_attempt(recovery_id, phase, runner())
    assert attempt is not None
    return attempt


def finish(repository: Repository, recovery_id: str, phase: Phase) -> Attempt:
    """Runs a phase of one unit to its end."""
    attempt = begin(repository, recovery_id, phase)
    with repository.fenced(recovery_id, attempt.epoch) as transaction:
        transaction.set_total(phase, 1, 10)
        transaction.record_unit(phase, "only", f"/{phase}.json", 1, 10, {})
        transaction.finish_phase(phase, {"phase": str(phase)})
    return attempt


def reach(repository: Repository, phase: Phase, **changes: Any) -> Attempt:
    """A new recovery whose phases before ``phase`` are done and where ``phase`` has just begun."""
    recovery, _ = repository.create_recovery(new_recovery(**changes))
    for earlier in itertools.takewhile(lambda each: each is not phase, Phase):
        finish(repository, recovery.id, earlier)
    return begin(repository, recovery.id, phase)


def prepared(subtask: int, checkpoint_id: int, content: str = "content", **changes: Any) -> Prepared:
    value = Prepared(subtask, checkpoint_id, f"/{content}.json", hashlib.sha256(content.encode()).hexdigest(), 5, 50)
    return dataclasses.replace(value, **changes)
