"""Exports of recovery checkpoints: they hold the spill sets they read, and are known until they have ended.

Exempt from the fence, as commands are: the process that exports is no attempt. Where an export writes is noted in the
row of its checkpoint before it writes anything, so that a sweep finds what a killed one left.
"""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from cdr_core.errors import Refused
from cdr_core.metadata import convert
from cdr_core.metadata.database import Database
from cdr_core.metadata.grants import NO_EPOCH, export_holder, export_of, is_live
from cdr_core.metadata.models import GrantRow, RecoveryCheckpointRow, SpillSetRow
from cdr_core.metadata.rows import lock_recovery
from cdr_core.metadata.states import RecoveryCheckpointState, SpillSetState
from cdr_core.metadata.transaction import FencedTransaction
from cdr_core.metadata.values import Export, SpillSet

_NOTED = "exports"


class Exports:
    _database: Database

    def begin_export(self, recovery_id: str, export: Export, seconds: float) -> tuple[SpillSet, ...]:
        """Note the export and hold every sealed set for so long; these sets. Refused unless its checkpoint is kept."""
        with self._database.write() as session:
            recovery = lock_recovery(session, recovery_id)
            row = session.get(RecoveryCheckpointRow, (recovery_id, export.checkpoint_id))
            if row is None or row.state is not RecoveryCheckpointState.COMPLETED:
                state = "unknown" if row is None else row.state
                raise Refused(
                    f"recovery checkpoint {export.checkpoint_id} of {recovery_id} is {state}", hint="take a new one"
                )
            note = {"directory": export.directory, "host": export.host, "copies": list(export.copies)}
            row.result = {**(row.result or {}), _NOTED: {**_noted(row), export.name: note}}
            sealed = select(SpillSetRow).where(
                SpillSetRow.recovery_id == recovery_id, SpillSetRow.state == SpillSetState.SEALED
            )
            sets = session.scalars(sealed.order_by(SpillSetRow.id)).all()
            transaction = FencedTransaction(session, recovery_id, recovery.epoch)
            for each in sets:
                transaction.acquire_grant(each.id, export_holder(export.name, time.time() + seconds))
            session.flush()
            return tuple(convert.spill_set(session, each, recovery.epoch) for each in sets)

    def renew_export(self, recovery_id: str, export: str, seconds: float) -> bool:
        """Hold the sets for so long from now; ``False`` = the export was taken for dead, and may not go on."""
        with self._database.write() as session:
            lock_recovery(session, recovery_id)
            grants = _grants(session, recovery_id, export)
            if not grants or not all(is_live(grant, NO_EPOCH) for grant in grants):
                return False
            until = time.time() + seconds
            for grant in grants:
                grant.holder = export_holder(export, until)
            return True

    def end_export(self, recovery_id: str, export: str) -> None:
        """It is over, however it ended: its note and its grants go. To be called when its files are in order."""
        with self._database.write() as session:
            recovery = lock_recovery(session, recovery_id)
            transaction = FencedTransaction(session, recovery_id, recovery.epoch)
            for grant in _grants(session, recovery_id, export):
                transaction.release_grant(grant.set_id, grant.holder)
            for row in _rows(session, recovery_id):
                if export in _noted(row):
                    others = {name: note for name, note in _noted(row).items() if name != export}
                    row.result = {**(row.result or {}), _NOTED: others}

    def exports(self, recovery_id: str) -> tuple[Export, ...]:
        """Those that have not ended."""
        with self._database.read() as session:
            return tuple(
                Export(
                    name=name,
                    checkpoint_id=row.checkpoint_id,
                    directory=note["directory"],
                    host=note["host"],
                    copies=tuple(note["copies"]),
                    live=any(is_live(grant, NO_EPOCH) for grant in _grants(session, recovery_id, name)),
                )
                for row in _rows(session, recovery_id)
                for name, note in _noted(row).items()
            )


def _noted(row: RecoveryCheckpointRow) -> dict[str, Any]:
    return dict((row.result or {}).get(_NOTED, {}))


def _rows(session: Session, recovery_id: str) -> list[RecoveryCheckpointRow]:
    rows = select(RecoveryCheckpointRow).where(RecoveryCheckpointRow.recovery_id == recovery_id)
    return list(session.scalars(rows.order_by(RecoveryCheckpointRow.checkpoint_id)))


def _grants(session: Session, recovery_id: str, export: str) -> list[GrantRow]:
    rows = select(GrantRow).join(SpillSetRow, SpillSetRow.id == GrantRow.set_id)
    found = session.scalars(rows.where(SpillSetRow.recovery_id == recovery_id, GrantRow.released.is_(False)))
    return [row for row in found if export_of(row.holder) == export]
