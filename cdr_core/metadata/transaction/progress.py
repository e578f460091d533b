"""How far the attempt is: plan, totals, finished units, ledger, the end of a phase."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
from sqlalchemy import delete, func, select

from cdr_core.errors import PhaseRefused, Refused, Unbalanced
from cdr_core.metadata.attempts import end_attempt, start_phase
from cdr_core.metadata.cancel import cancel_now, close_commands, open_commands, refuse_to_cancel
from cdr_core.metadata.models import AttemptRow, LedgerRow, PhaseRow, UnitResultRow
from cdr_core.metadata.models.base import utc_now
from cdr_core.metadata.recovery_options import PlanSummary
from cdr_core.metadata.rows import insert_unless_there, rows_changed, settle_pin
from cdr_core.metadata.states import AttemptState, CommandState, Phase, PhaseState, RecoveryState, move
from cdr_core.metadata.transaction.scope import Scope
from cdr_core.metadata.values import Json, UnitProgress

LONGEST_ERROR = 8000
"""Characters of an error that are kept: a whole stack trace of Spark does not help on a page."""


class Progress(Scope):
    def save_plan(self, plan_hash: str, uri: str, summary: PlanSummary) -> bool:
        """Stores the plan; ``False`` when it is there already. Another layout than the stored one is refused."""
        recovery = self._recovery()
        if recovery.plan_hash == plan_hash:
            return False
        if recovery.plan_hash is not None:
            raise Refused(
                f"the layout of recovery {self.recovery_id} changed: "
                f"its plan is {recovery.plan_hash}, this attempt made {plan_hash}",
                hint="choose another target to recover with another layout",
            )
        recovery.plan_hash, recovery.plan_uri, recovery.plan_summary = plan_hash, uri, msgspec.to_builtins(summary)
        return True

    def set_server(self, server: Json | None) -> None:
        """The Spark server of this recovery, so that the next attempt can find (and interrupt) it; ``None`` = none."""
        self._recovery().server = None if server is None else dict(server)

    def set_total(self, phase: Phase, units: int, total_bytes: int | None) -> None:
        """What the phase will have done when it is done. May change, but not to less than is done already."""
        row = self._running(phase)
        if units < row.units_done:
            raise PhaseRefused(f"phase {phase} cannot have {units} units in total: {row.units_done} are done")
        row.units_total, row.bytes_total = units, total_bytes

    def set_running(self, phase: Phase, running: Mapping[str, UnitProgress]) -> None:
        """How far the units under way are, by unit. Only to be looked at; nothing is decided by it."""
        self._running(phase).running = {unit: done.to_json() for unit, done in running.items()}

    def record_unit(self, phase: Phase, unit: str, manifest: str, records: int, size: int, result: Json) -> bool:
        """A unit is finished and its manifest durable; ``False`` when any attempt recorded it before."""
        row = self._running(phase)
        columns = {
            "recovery_id": self.recovery_id,
            "phase": phase,
            "unit": unit,
            "epoch": self.epoch,
            "manifest": manifest,
            "records": records,
            "bytes": size,
            "result": dict(result),
            "recorded_at": utc_now(),
        }
        if not insert_unless_there(self._session, UnitResultRow, columns, ["recovery_id", "phase", "unit"]):
            return False
        if row.running and unit in row.running:  # or what it has done would count twice until the next look
            row.running = {other: done for other, done in row.running.items() if other != unit}
        row.units_done += 1
        row.bytes_done += size
        row.records_done += records
        return True

    def forget_units(self, phase: Phase, units: Collection[str]) -> None:
        """Units that an earlier version finished and this one does again; the phase is not done yet."""
        row = self._running(phase)
        for unit in units:
            found = self._session.get(UnitResultRow, (self.recovery_id, phase, unit))
            if found is not None:
                row.units_done -= 1
                row.bytes_done -= found.bytes
                row.records_done -= found.records
                self._session.delete(found)
        self._session.flush()

    def redo_unit(self, phase: Phase, unit: str, manifest: str, records: int, size: int, result: Json) -> None:
        """A finished unit whose files were lost has been done again. The same records and bytes, or ``Unbalanced``."""
        row = self._session.get(UnitResultRow, (self.recovery_id, phase, unit))
        if row is None:
            raise PhaseRefused(f"unit {unit} of phase {phase} was never done, so it cannot be done again")
        if (row.records, row.bytes) != (records, size):
            raise Unbalanced(
                f"unit {unit} of phase {phase} had {row.records} records in {row.bytes} bytes, "
                f"done again it has {records} in {size}"
            )
        row.epoch, row.manifest, row.result = self.epoch, manifest, dict(result)

    def add_ledger(self, phase: Phase, entries: Sequence[Json]) -> None:
        """The whole ledger of a phase, in order; replaces an earlier attempt's. Once the phase is DONE it is fixed."""
        if self._phase(phase).state is PhaseState.DONE:
            self._require_same_ledger(phase, entries)
            return
        rows_changed(
            self._session,
            delete(LedgerRow).where(LedgerRow.recovery_id == self.recovery_id, LedgerRow.phase == phase),
        )
        self._session.add_all(
            LedgerRow(recovery_id=self.recovery_id, phase=phase, entry=place, epoch=self.epoch, body=dict(body))
            for place, body in enumerate(entries)
        )

    def finish_phase(self, phase: Phase, result: Json, *, then: Phase | None = None) -> None:
        """The phase is DONE and so is the attempt; with commit, so is the recovery.

        Refused unless every unit is recorded. ``then`` names the next phase: the attempt goes on with it in its epoch.
        """
        row = self._running(phase)
        self._refuse_unfinished(row)
        if then is not None and then is not phase.successor:
            raise PhaseRefused(f"phase {then} does not follow {phase}")
        row.state = move(row.state, PhaseState.DONE)
        row.result, row.running, row.ended_at = dict(result), None, utc_now()
        if then is None:
            end_attempt(self._attempt(), AttemptState.DONE, None)
        else:
            self._go_on(then)
        if phase is Phase.COMMIT:
            self.finish_recovery()

    def finish_recovery(self) -> None:
        """DONE: every phase is. Lets the source checkpoint go and refuses what users still asked for."""
        recovery = self._recovery()
        if recovery.state is RecoveryState.DONE:
            return
        self._session.flush()
        open_phases = select(PhaseRow.name).where(
            PhaseRow.recovery_id == self.recovery_id, PhaseRow.state != PhaseState.DONE
        )
        unfinished = self._session.scalars(open_phases.limit(1)).first()
        if unfinished is not None:
            raise PhaseRefused(f"recovery {self.recovery_id} cannot be done: {unfinished} is not")
        recovery.state = move(recovery.state, RecoveryState.DONE)
        waiting = open_commands(self._session, self.recovery_id)
        close_commands(waiting, CommandState.REFUSED, {"reason": "the recovery is done"})
        settle_pin(self._session, recovery.source_checkpoint_id)

    def fail_attempt(self, error: str) -> None:
        """Attempt, phase and recovery are FAILED; a retry may take it up again. Nothing happens if it failed before."""
        attempt = self._attempt()
        if attempt.state is AttemptState.FAILED:
            return
        self._end_in_failure(attempt, error[:LONGEST_ERROR])
        recovery = self._recovery()
        recovery.state = move(recovery.state, RecoveryState.FAILED)
        recovery.error = error[:LONGEST_ERROR]

    def cancel_recovery(self) -> None:
        """The runner obeys a cancel: it has stopped. Refused once the commit log has an entry."""
        recovery = self._recovery()
        refuse_to_cancel(self._session, recovery)
        attempt = self._attempt()
        if attempt.state is AttemptState.RUNNING:
            self._end_in_failure(attempt, "cancelled")
        self._session.flush()
        cancel_now(self._session, recovery)

    def _end_in_failure(self, attempt: AttemptRow, error: str) -> None:
        phase = self._phase(attempt.phase)
        phase.state = move(phase.state, PhaseState.FAILED)
        end_attempt(attempt, AttemptState.FAILED, error)

    def _go_on(self, then: Phase) -> None:
        recovery, attempt = self._recovery(), self._attempt()
        start_phase(self._phase(then))
        recovery.state = move(recovery.state, then.running_state)
        attempt.phase = then

    def _refuse_unfinished(self, row: PhaseRow) -> None:
        self._session.flush()
        recorded = select(func.count()).where(
            UnitResultRow.recovery_id == self.recovery_id, UnitResultRow.phase == row.name
        )
        assert self._session.scalars(recorded).one() == row.units_done, "the count of units is not that of their rows"
        if row.units_total is None:
            raise PhaseRefused(f"phase {row.name} cannot be done: how many units it has was never said")
        if row.units_done != row.units_total:
            raise PhaseRefused(f"phase {row.name} cannot be done: {row.units_done} of {row.units_total} units are")

    def _require_same_ledger(self, phase: Phase, entries: Sequence[Json]) -> None:
        stored = self._session.scalars(
            select(LedgerRow.body)
            .where(LedgerRow.recovery_id == self.recovery_id, LedgerRow.phase == phase)
            .order_by(LedgerRow.entry)
        ).all()
        if stored != [dict(body) for body in entries]:
            raise Unbalanced(f"phase {phase} of recovery {self.recovery_id} is done, with another ledger")
