"""Creating a recovery, or attaching to the one that has the same identity."""

from __future__ import annotations

import json

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from cdr_core.errors import Refused, StartOver
from cdr_core.metadata.models import PhaseRow, RecoveryRow, SourceCheckpointRow
from cdr_core.metadata.models.base import utc_now
from cdr_core.metadata.recovery_options import RecoverySettings
from cdr_core.metadata.replace import replace
from cdr_core.metadata.rows import insert_unless_there, lock_recovery, lock_source, settle_pin
from cdr_core.metadata.states import Phase, PhaseState, RecoveryState
from cdr_core.metadata.values import NewRecovery


def create(session: Session, new: NewRecovery) -> tuple[RecoveryRow, bool]:
    """The recovery of this identity, and whether it was created now. In one transaction, also when several race."""
    existing = find(session, new.identity)
    if existing is not None and existing.id == new.replaces:
        # Locked and read again: another start-over may have replaced it meanwhile.
        lock_recovery(session, existing.id)
        session.expire_all()
        existing = find(session, new.identity)
    if existing is not None and existing.id != new.replaces:
        return _attach(existing, new), False
    source = _source(session, new)
    if existing is not None:
        replace(session, existing, new)
    if not insert_unless_there(session, RecoveryRow, _columns(new, source.id), ["identity"]):
        settle_pin(session, source.id)
        winner = find(session, new.identity)
        assert winner is not None, "the database saw a recovery of this identity and does not show it"
        return _attach(winner, new), False
    session.add_all(PhaseRow(recovery_id=new.id, name=phase, state=PhaseState.PENDING) for phase in Phase)
    settle_pin(session, source.id)
    session.flush()
    return session.get_one(RecoveryRow, new.id), True


def find(session: Session, identity: str | None) -> RecoveryRow | None:
    if identity is None:
        return None
    return session.scalars(select(RecoveryRow).where(RecoveryRow.identity == identity)).one_or_none()


def _source(session: Session, new: NewRecovery) -> SourceCheckpointRow:
    row = {
        "uri": new.source,
        "metadata_sha256": new.metadata_sha256,
        "flink_checkpoint_id": new.flink_checkpoint_id,
        "pinned": True,
    }
    insert_unless_there(session, SourceCheckpointRow, row, ["metadata_sha256", "uri"])
    same = select(SourceCheckpointRow.id).where(
        SourceCheckpointRow.metadata_sha256 == new.metadata_sha256, SourceCheckpointRow.uri == new.source
    )
    return lock_source(session, session.scalars(same).one())


def _columns(new: NewRecovery, source_id: int) -> dict[str, object]:
    now = utc_now()
    return {
        "id": new.id,
        "source_checkpoint_id": source_id,
        "target": new.target,
        "identity": new.identity,
        "spec": new.spec,
        "spec_sha256": new.spec_sha256,
        "parallelism": new.parallelism,
        "options": msgspec.to_builtins(new.options),
        "settings": msgspec.to_builtins(new.settings),
        "workspace": new.workspace,
        "host_id": new.host_id,
        "state": RecoveryState.CREATED,
        "epoch": 0,
        "generation": new.generation,
        "cdr_version": new.cdr_version,
        "created_at": now,
        "updated_at": now,
    }


def _attach(stored: RecoveryRow, new: NewRecovery) -> RecoveryRow:
    """The stored recovery, if it is the one that was asked for; what differs is named with both values."""
    if new.replaces is not None:
        if _settings(stored).replace_token == new.settings.replace_token:
            return stored
        raise StartOver(
            f"recovery {new.replaces} was replaced by {stored.id} while this start-over was checked",
            hint="start over with --replace once more to replace that one",
        )
    what = f"recovery {stored.id} of this checkpoint to {stored.target}"
    if stored.state is RecoveryState.CANCELLED:
        raise StartOver(f"{what} was cancelled", hint="start over with --replace, or choose another target")
    wanted = (
        ("spec (SHA-256)", stored.spec_sha256, new.spec_sha256),
        ("parallelism", stored.parallelism, new.parallelism),
        ("options", _canonical(stored.options), _canonical(msgspec.to_builtins(new.options))),
    )
    for name, before, now in wanted:
        if before != now:
            same = f"start it with the same {name.split()[0]}"
            if stored.state is RecoveryState.DONE:
                raise Refused(f"{what} is done and has {name} {before}, not {now}", hint=f"{same}, or another target")
            raise StartOver(
                f"{what} has {name} {before}, not {now}",
                hint=f"{same}, start over with --replace, or choose another target",
            )
    if new.settings.trust_key and not _settings(stored).trust_key:
        stored.settings = {**stored.settings, "trust_key": True}
    return stored


def _settings(row: RecoveryRow) -> RecoverySettings:
    return msgspec.convert(row.settings, RecoverySettings)


def _canonical(options: object) -> str:
    return json.dumps(options, sort_keys=True, ensure_ascii=False)
