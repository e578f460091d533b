"""What the Recoveries page and the metrics read: many recoveries at once, sums instead of rows.

Ten thousand recoveries and ledgers of ten thousand lines are nothing special, so whatever can be counted is counted by
the database, and no statement here fetches a receipt or a whole ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import BigInteger, ColumnElement, Select, cast, func, or_, select
from sqlalchemy.orm import Session

from cdr_core.metadata import convert
from cdr_core.metadata.database import Database
from cdr_core.metadata.models import (
    AttemptRow,
    LedgerRow,
    PhaseRow,
    ReceiptRow,
    RecoveryRow,
    SourceCheckpointRow,
)
from cdr_core.metadata.rows import unknown_recovery
from cdr_core.metadata.states import Phase, RecoveryState
from cdr_core.metadata.values import PhaseProgress

LONGEST_PAGE = 500
LONGEST_SEARCH = 200
_ESCAPE = "\\"


@dataclass(frozen=True, slots=True)
class RecoveryLine:
    """A recovery as a list shows it; ``phases`` in the order in which they run."""

    id: str
    spec: str
    source: str
    flink_checkpoint_id: int | None
    target: str
    parallelism: str
    state: RecoveryState
    epoch: int
    error: str | None
    created_at: datetime
    updated_at: datetime
    phases: tuple[PhaseProgress, ...]


@dataclass(frozen=True, slots=True)
class RecoveryPage:
    """Some of the recoveries that were asked for, how many there are of these, and how many in each state at all."""

    lines: tuple[RecoveryLine, ...]
    total: int
    by_state: Mapping[RecoveryState, int]


@dataclass(frozen=True, slots=True)
class LedgerSum:
    """A phase's whole ledger: how many lines, and what they add up to."""

    phase: Phase
    entries: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Flow:
    """Records of an exchange that were on their way to old subtask ``down`` and now belong to ``new_down``.

    ``new_down`` is ``None`` before the filter has decided.
    """

    exchange: str
    down: int
    new_down: int | None
    records: int
    bytes: int


class Overview:
    _database: Database

    def recovery_page(
        self, limit: int = 50, offset: int = 0, states: Collection[RecoveryState] = (), search: str = ""
    ) -> RecoveryPage:
        """Newest first; no states = all. ``search`` is part of an id, a checkpoint, a target or a spec, in any case."""
        start, size = max(0, offset), max(0, min(limit, LONGEST_PAGE))
        order = (RecoveryRow.created_at.desc(), RecoveryRow.id.desc())
        wanted = _filtered(states, search, folds=self._database.is_sqlite).order_by(*order)
        with self._database.read() as session:
            by_state = _by_state(session)
            # First the ids: a row holds its spec and its plan's summary, and only those that are shown are read whole.
            if search:
                # Every row has to be looked at anyway: once, for both the page and the number.
                found = session.scalars(wanted).all()
                ids, total = found[start : start + size], len(found)
            else:
                ids = session.scalars(wanted.limit(size).offset(start)).all()
                total = sum(by_state[state] for state in (states or RecoveryState))
            return RecoveryPage(_lines(session, ids), total, by_state)

    def ledger_sums(self, recovery_id: str, phases: Collection[Phase] = tuple(Phase)) -> tuple[LedgerSum, ...]:
        """One sum for each of the phases that has written its ledger, in their order."""
        sums = (
            select(LedgerRow.phase, func.count(), func.sum(_whole_number("records")), func.sum(_whole_number("bytes")))
            .where(LedgerRow.recovery_id == recovery_id, LedgerRow.phase.in_(phases))
            .group_by(LedgerRow.phase)
        )
        with self._database.read() as session:
            found = {row[0]: LedgerSum(row[0], row[1], int(row[2]), int(row[3])) for row in session.execute(sums)}
        return tuple(found[phase] for phase in Phase if phase in found)

    def flows(self, recovery_id: str, phase: Phase) -> tuple[Flow, ...]:
        """The phase's ledger summed over the senders, by exchange, old and new subtask."""
        where = (LedgerRow.body["exchange"].as_string(), _whole_number("down"), _whole_number("new_down"))
        sums = (
            select(*where, func.sum(_whole_number("records")), func.sum(_whole_number("bytes")))
            .where(LedgerRow.recovery_id == recovery_id, LedgerRow.phase == phase)
            .group_by(*where)
        )
        with self._database.read() as session:
            flows = [Flow(row[0], row[1], row[2], int(row[3]), int(row[4])) for row in session.execute(sums)]
        return tuple(sorted(flows, key=lambda flow: (flow.exchange, flow.down, flow.new_down or 0)))

    def has_receipt(self, recovery_id: str) -> bool:
        with self._database.read() as session:
            found = select(ReceiptRow.recovery_id).where(ReceiptRow.recovery_id == recovery_id)
            return session.scalar(found) is not None

    def recovery_of_run(self, run: str) -> str | None:
        """The recovery that this run of a DAG worked on last, as far as it ever began an attempt."""
        newest = select(AttemptRow.recovery_id).where(AttemptRow.run == run).order_by(AttemptRow.started_at.desc())
        with self._database.read() as session:
            return session.scalar(newest.limit(1))

    def recovery_line(self, recovery_id: str) -> RecoveryLine:
        """One recovery; an unknown one is refused."""
        with self._database.read() as session:
            found = _lines(session, [recovery_id])
        if not found:
            raise unknown_recovery(recovery_id)
        return found[0]


def _filtered(states: Collection[RecoveryState], search: str, *, folds: bool) -> Select[str]:
    """``folds`` = the database's LIKE ignores the case by itself, which costs half of asking for it."""
    wanted = select(RecoveryRow.id)
    if states:
        wanted = wanted.where(RecoveryRow.state.in_(states))
    if not search:
        return wanted
    like = f"%{_escaped(search[:LONGEST_SEARCH])}%"
    wanted = wanted.join(SourceCheckpointRow, SourceCheckpointRow.id == RecoveryRow.source_checkpoint_id)
    searched = (RecoveryRow.id, RecoveryRow.target, RecoveryRow.spec, SourceCheckpointRow.uri)
    matches = [(column.like if folds else column.ilike)(like, escape=_ESCAPE) for column in searched]
    return wanted.where(or_(*matches))


def _escaped(text: str) -> str:
    """The text as itself: a user who looks for 100% does not mean a wildcard."""
    for sign in (_ESCAPE, "%", "_"):
        text = text.replace(sign, _ESCAPE + sign)
    return text


def _whole_number(name: str) -> ColumnElement[int]:
    """A number of a ledger line, by way of text: PostgreSQL would make 32 bits of it, which bytes outgrow."""
    return cast(LedgerRow.body[name].as_string(), BigInteger)


def _by_state(session: Session) -> dict[RecoveryState, int]:
    rows = session.execute(select(RecoveryRow.state, func.count()).group_by(RecoveryRow.state))
    found = {row[0]: row[1] for row in rows}
    return {state: found.get(state, 0) for state in RecoveryState}


def _lines(session: Session, ids: Sequence[str]) -> tuple[RecoveryLine, ...]:
    rows = session.execute(
        select(RecoveryRow, SourceCheckpointRow)
        .join(SourceCheckpointRow, SourceCheckpointRow.id == RecoveryRow.source_checkpoint_id)
        .where(RecoveryRow.id.in_(ids))
    )
    found = {recovery.id: (recovery, source) for recovery, source in rows}
    phases = _phases(session, list(found))
    return tuple(_line(*found[each], phases[each]) for each in ids if each in found)


def _phases(session: Session, recoveries: Sequence[str]) -> dict[str, tuple[PhaseProgress, ...]]:
    rows = session.scalars(select(PhaseRow).where(PhaseRow.recovery_id.in_(recoveries))).all()
    by_key = {(row.recovery_id, row.name): convert.phase(row) for row in rows}
    return {recovery: tuple(by_key[recovery, phase] for phase in Phase) for recovery in recoveries}


def _line(row: RecoveryRow, source: SourceCheckpointRow, phases: tuple[PhaseProgress, ...]) -> RecoveryLine:
    return RecoveryLine(
        id=row.id,
        spec=row.spec,
        source=source.uri,
        flink_checkpoint_id=source.flink_checkpoint_id,
        target=row.target,
        parallelism=row.parallelism,
        state=row.state,
        epoch=row.epoch,
        error=row.error,
        created_at=row.created_at,
        updated_at=row.updated_at,
        phases=phases,
    )
