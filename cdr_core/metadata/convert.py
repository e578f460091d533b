"""From rows to values: the only way out of this package."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from cdr_core.drill_values import DrillArgs, DrillCheck
from cdr_core.metadata import models, values
from cdr_core.metadata.grants import is_live
from cdr_core.metadata.recovery_options import PlanSummary, RecoveryOptions, RecoverySettings


def source(row: models.SourceCheckpointRow) -> values.SourceCheckpoint:
    return values.SourceCheckpoint(row.uri, row.metadata_sha256, row.flink_checkpoint_id, row.pinned)


def recovery(session: Session, row: models.RecoveryRow) -> values.Recovery:
    origin = session.get_one(models.SourceCheckpointRow, row.source_checkpoint_id)
    return values.Recovery(
        id=row.id,
        source=source(origin),
        target=row.target,
        spec=row.spec,
        spec_sha256=row.spec_sha256,
        parallelism=row.parallelism,
        options=msgspec.convert(row.options, RecoveryOptions),
        settings=msgspec.convert(row.settings, RecoverySettings),
        workspace=row.workspace,
        host_id=row.host_id,
        state=row.state,
        epoch=row.epoch,
        plan_hash=row.plan_hash,
        plan_uri=row.plan_uri,
        plan_summary=msgspec.convert(row.plan_summary, PlanSummary | None),
        server=row.server,
        error=row.error,
        created_at=row.created_at,
        updated_at=row.updated_at,
        generation=row.generation,
        replaced_by=row.replaced_by,
        cdr_version=row.cdr_version,
    )


def attempt(row: models.AttemptRow) -> values.Attempt:
    runner = values.Runner(row.run, row.task, row.try_number, row.host, row.pid)
    return values.Attempt(
        row.recovery_id, row.epoch, row.phase, runner, row.state, row.started_at, row.ended_at, row.error
    )


def phase(row: models.PhaseRow) -> values.PhaseProgress:
    return values.PhaseProgress(
        name=row.name,
        state=row.state,
        units_total=row.units_total,
        units_done=row.units_done,
        bytes_total=row.bytes_total,
        bytes_done=row.bytes_done,
        records_done=row.records_done,
        running={unit: values.UnitProgress(*done) for unit, done in (row.running or {}).items()},
        result=row.result,
        started_at=row.started_at,
        ended_at=row.ended_at,
    )


def unit(row: models.UnitResultRow) -> values.UnitResult:
    return values.UnitResult(row.phase, row.unit, row.epoch, row.manifest, row.records, row.bytes, row.result)


def spill_set(session: Session, row: models.SpillSetRow, epoch: int) -> values.SpillSet:
    """``epoch`` is the recovery's current one: it decides which grants are live."""
    files = session.scalars(
        select(models.SpillFileRow).where(models.SpillFileRow.set_id == row.id).order_by(models.SpillFileRow.position)
    )
    grants = session.scalars(
        select(models.GrantRow).where(models.GrantRow.set_id == row.id).order_by(models.GrantRow.holder)
    )
    return _spill_set(row, files, grants, epoch)


def spill_sets(
    session: Session, recovery_id: str, rows: Sequence[models.SpillSetRow], epoch: int
) -> tuple[values.SpillSet, ...]:
    """All of a recovery at once, by as many queries as for one: a driver asks for them several times a phase."""
    ids = select(models.SpillSetRow.id).where(models.SpillSetRow.recovery_id == recovery_id)
    files: dict[int, list[models.SpillFileRow]] = defaultdict(list)
    grants: dict[int, list[models.GrantRow]] = defaultdict(list)
    chosen = select(models.SpillFileRow).where(models.SpillFileRow.set_id.in_(ids))
    for file in session.scalars(chosen.order_by(models.SpillFileRow.position)):
        files[file.set_id].append(file)
    held = select(models.GrantRow).where(models.GrantRow.set_id.in_(ids))
    for grant in session.scalars(held.order_by(models.GrantRow.holder)):
        grants[grant.set_id].append(grant)
    return tuple(_spill_set(row, files[row.id], grants[row.id], epoch) for row in rows)


def _spill_set(
    row: models.SpillSetRow, files: Iterable[models.SpillFileRow], grants: Iterable[models.GrantRow], epoch: int
) -> values.SpillSet:
    return values.SpillSet(
        id=row.id,
        subtask=row.subtask,
        epoch=row.epoch,
        manifest=row.manifest,
        host=row.host,
        bytes=row.bytes,
        state=row.state,
        files=tuple(values.SpillFile(file.path, file.bytes) for file in files),
        grants=tuple(_grant(grant, epoch) for grant in grants),
    )


def _grant(row: models.GrantRow, epoch: int) -> values.Grant:
    return values.Grant(row.holder, row.epoch, row.durable, row.released, is_live(row, epoch))


def checkpoint(row: models.RecoveryCheckpointRow) -> values.RecoveryCheckpoint:
    return values.RecoveryCheckpoint(
        checkpoint_id=row.checkpoint_id,
        epoch=row.epoch,
        state=row.state,
        manifest=row.manifest,
        sha256=row.sha256,
        result=row.result,
        reason=row.reason,
        triggered_at=row.triggered_at,
        ended_at=row.ended_at,
    )


def prepared(row: models.PreparedRow) -> values.Prepared:
    return values.Prepared(
        subtask=row.subtask,
        checkpoint_id=row.checkpoint_id,
        epoch=row.epoch,
        manifest=row.manifest,
        sha256=row.sha256,
        records=row.records,
        bytes=row.bytes,
        watermark=row.watermark,
        idle=row.idle,
    )


def commit(row: models.CommitLogRow) -> values.CommitLogEntry:
    return values.CommitLogEntry(
        commit_user=row.commit_user,
        commit_id=row.commit_id,
        epoch=row.epoch,
        state=row.state,
        base=row.base,
        proof_sha256=row.proof_sha256,
        location=row.location,
        uuid=row.uuid,
    )


def command(row: models.CommandRow) -> values.Command:
    return values.Command(
        row.id, row.recovery_id, row.kind, row.args, row.state, row.answer, row.requested_at, row.answered_at
    )


def drill(row: models.DrillRow, result: models.DrillResultRow | None) -> values.Drill:
    return values.Drill(
        id=row.id,
        checkpoint=row.checkpoint,
        args=msgspec.convert(row.args, DrillArgs),
        recovery_id=row.recovery_id,
        started_at=row.started_at,
        result=result.result if result else None,
        checks=msgspec.convert(result.checks, tuple[DrillCheck, ...]) if result else (),
        rto_s=result.rto_s if result else None,
        rpo_s=result.rpo_s if result else None,
        error=result.error if result else None,
        ended_at=result.ended_at if result else None,
    )
