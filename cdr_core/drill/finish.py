"""Ending a drill: collect the facts, judge them, write the result down, and remove what was rehearsed.

The result is written before anything is removed: a process that dies in between leaves a drill that is judged, and
files that the sweep knows to be of a drill that is over.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cdr_core.drill.checkpoint_search import METADATA
from cdr_core.drill.scratch import remove
from cdr_core.drill.time_limit import is_given_up
from cdr_core.drill.verdict import (
    FLINK_RESTORE,
    NO_FLINK,
    SQL,
    Check,
    CheckResult,
    Facts,
    Failure,
    FailureKind,
    Verdict,
    judge,
)
from cdr_core.errors import CdrError, Refused
from cdr_core.metadata import AttemptState, Drill, Phase, PhaseState, Repository
from cdr_core.runtime.pin_file import unpin
from cdr_core.settings import Settings
from cdr_core.spark.server import find_server, is_supervised, stop_server
from cdr_core.storage import is_local, join, storage_for
from cdr_core.storage.local import host_id
from cdr_core.sweep import sweep_recovery
from cdr_core.targets import Target

NOTHING = "Nothing was recovered to look at."


def end(repository: Repository, settings: Settings, drill_id: str, failure: Failure | None = None) -> Drill:
    """The drill with its result; one that has it already returns it as it is. Its scratch is gone afterwards, or the
    sweep removes it.
    """
    drill = repository.drill(drill_id)
    if drill.result is None:
        verdict = judge(facts_of(repository, settings, drill, failure))
        drill = _write(repository, drill, verdict)
    clean_up(repository, settings, drill)
    return drill


def facts_of(repository: Repository, settings: Settings, drill: Drill, failure: Failure | None) -> Facts:
    """What is known about a drill whose recovery is over, or will not go on."""
    modified = drill.args.modified
    recovered_at = _recovered_at(repository, drill)
    receipt = repository.receipt(drill.recovery_id) if drill.recovery_id and recovered_at else None
    looked = _looked(drill, receipt, settings) if receipt else not_looked(drill, settings)
    return Facts(
        started_at=drill.started_at,
        modified=datetime.fromisoformat(modified) if modified else None,
        recovered_at=recovered_at,
        balance=str(receipt["verdict"]) if receipt else None,
        proven=bool(receipt.get("proven", True)) if receipt else True,
        failure=None if recovered_at else _explained(repository, drill, failure),
        given_up=recovered_at is None and _was_given_up(drill, failure),
        rto_limit_s=drill.args.rto_limit_s,
        rpo_limit_s=drill.args.rpo_limit_s,
        looked=looked,
    )


def _was_given_up(drill: Drill, failure: Failure | None) -> bool:
    """Whether its length is what ended it. A runner that died or failed says nothing about how long it would take,
    however late that is noticed.
    """
    ended_by_length = failure is None or failure.kind is FailureKind.GIVEN_UP
    return ended_by_length and is_given_up(drill, datetime.now(UTC))


def _looked(drill: Drill, receipt: Mapping[str, Any], settings: Settings) -> tuple[Check, ...]:
    # Not at the top: only rows that are there need what reads them.
    from cdr_core.drill.checks import look

    return look(drill, receipt, settings)


def not_looked(drill: Drill, settings: Settings) -> tuple[Check, ...]:
    """The checks that a drill's plan asks for, where there is nothing to look at."""
    in_table = Target.parse(drill.args.target).kind.has_manifests
    checks: list[Check] = []
    for kind in drill.args.checks.wanted:
        if kind == SQL:
            checks += [Check(f"{SQL}: {query.name}", CheckResult.NOT_RUN, NOTHING) for query in drill.args.checks.sql]
        elif kind == FLINK_RESTORE and not settings.drill_flink:
            checks.append(Check(kind, CheckResult.NOT_CONFIGURED, NO_FLINK))
        elif kind == FLINK_RESTORE or in_table:
            checks.append(Check(kind, CheckResult.NOT_RUN, NOTHING))
    return tuple(checks)


def clean_up(repository: Repository, settings: Settings, drill: Drill) -> None:
    """Remove what a drill that is over left: its rows, its recovery's workspace, its Spark servers.

    Only what bears the drill's or its recovery's own name; whatever cannot be removed is left to the sweep. What lies
    on another host's disks stays for that host's sweep; objects are the same from everywhere.
    """
    is_here = drill.args.host == host_id()
    for name in filter(None, (drill.recovery_id, drill.id)) if is_here else ():
        with suppress(CdrError, OSError):
            _remove_server(settings.home / "spark" / name)
    if drill.recovery_id is not None:
        with suppress(CdrError):
            # It will not go on. Refused where it is done, or where something may be published: that is removed.
            repository.cancel(drill.recovery_id, force=True)
        with suppress(CdrError):
            unpin(repository.recovery(drill.recovery_id))
    scratch = drill.args.scratch
    if is_here or not is_local(scratch):
        with suppress(CdrError):
            remove(scratch, drill.id)
    if drill.recovery_id is not None:
        sweep_recovery(repository, drill.recovery_id, settings)


def _remove_server(directory: Path) -> None:
    running = find_server(directory)
    if running is not None:
        stop_server(running)
    if directory.is_dir() and not directory.is_symlink() and not is_supervised(directory):
        shutil.rmtree(directory)


def _write(repository: Repository, drill: Drill, verdict: Verdict) -> Drill:
    try:
        return repository.end_drill(
            drill.id,
            verdict.result,
            checks=[check.stored() for check in verdict.checks],
            rto_s=verdict.rto_s,
            rpo_s=verdict.rpo_s,
            error=verdict.sentence,
        )
    except Refused:
        # Another process was faster; the first result is the one that counts.
        return repository.drill(drill.id)


def _recovered_at(repository: Repository, drill: Drill) -> datetime | None:
    if drill.recovery_id is None:
        return None
    commit = next(row for row in repository.phases(drill.recovery_id) if row.name is Phase.COMMIT)
    return commit.ended_at if commit.state is PhaseState.DONE else None


def _explained(repository: Repository, drill: Drill, failure: Failure | None) -> Failure:
    """Why it did not end well: what its runner said, else what the recovery's rows say."""
    if failure is None:
        said = _said(repository, drill.recovery_id) if drill.recovery_id else None
        sentence = said or "The process that ran the drill was stopped before its recovery ended."
        failure = Failure(FailureKind.SURROUNDINGS, sentence)
    if failure.kind is FailureKind.CHECKPOINT and drill.args.modified and not _is_there(drill.checkpoint):
        return Failure(
            FailureKind.SURROUNDINGS,
            f"{drill.checkpoint} was removed while it was drilled; let the job retain more checkpoints "
            "(execution.checkpointing.num-retained).",
        )
    return failure


def _said(repository: Repository, recovery_id: str) -> str | None:
    """What the recovery's row says; where a further try began and was lost, why the one before it failed. What other
    phases ran into was overcome.
    """
    attempts = repository.attempts(recovery_id)
    tries = [each for each in attempts if each.phase is attempts[-1].phase and each.state is AttemptState.FAILED]
    return repository.recovery(recovery_id).error or (tries[-1].error if tries else None)


def _is_there(checkpoint: str) -> bool:
    """Whether the checkpoint still is one; a storage that does not answer says nothing."""
    uri = join(checkpoint, METADATA)
    try:
        return storage_for(uri).exists(uri)
    except CdrError:
        return True
