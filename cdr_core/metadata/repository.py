"""The metadata database as everybody else sees it: frozen values in, frozen values out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from cdr_core.errors import Cancelled, Refused, Replaced
from cdr_core.metadata import attempts, cancel, convert, create, requests
from cdr_core.metadata.database import Database
from cdr_core.metadata.drills import Drills
from cdr_core.metadata.exports import Exports
from cdr_core.metadata.migrate import check
from cdr_core.metadata.readers import Readers
from cdr_core.metadata.recovery_list import Overview
from cdr_core.metadata.rows import lock_recovery
from cdr_core.metadata.states import CANCEL, Phase, RecoveryState
from cdr_core.metadata.statistics import StatisticsReader
from cdr_core.metadata.transaction import FencedTransaction
from cdr_core.metadata.values import Attempt, Command, Json, NewRecovery, Recovery, Runner, identity_of


class Repository(Readers, Drills, Exports, Overview, StatisticsReader):
    """One metadata database. Usable from several threads; a forked child opens its own.

    Every method is one transaction and raises only cdr's own errors: ``DatabaseUnavailable`` when the database is away.
    """

    @classmethod
    def open(cls, url: str) -> Self:
        """Refuses a database whose schema is missing or another one, and a SQLite file whose directory is missing."""
        database = Database(url)
        try:
            check(database)
        except BaseException:
            database.close()
            raise
        return cls(database)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def create_recovery(self, new: NewRecovery) -> tuple[Recovery, bool]:
        """The recovery of this identity, and whether it is new; of many who ask at once, one makes it.

        Refused when the existing one has another spec, parallelism or options, or was cancelled, unless this one
        replaces it.
        """
        with self._database.write() as session:
            row, created = create.create(session, new)
            return convert.recovery(session, row), created

    def find_recovery(self, metadata_sha256: str, target: str) -> Recovery | None:
        """The newest generation of a checkpoint and target; ``None`` if there is none, and always for ``none:``."""
        with self._database.read() as session:
            row = create.find(session, identity_of(metadata_sha256, target))
            return None if row is None else convert.recovery(session, row)

    def begin_attempt(self, recovery_id: str, phase: Phase, runner: Runner) -> Attempt | None:
        """Takes the next epoch for this runner; earlier attempts are fenced from here on.

        ``None`` when the phase is DONE: no epoch is taken, the stored result counts. Raises ``PhaseRefused`` when the
        phase before is not DONE, ``Fenced`` when a newer try of the same task was here, ``Cancelled`` when the recovery
        is, or when a cancel was waiting whose driver died.
        """
        with self._database.write() as session:
            recovery = lock_recovery(session, recovery_id)
            if recovery.state is RecoveryState.REPLACED:
                raise Replaced(
                    f"recovery {recovery_id} was replaced by {recovery.replaced_by}",
                    hint=f"run: cdr resume {recovery.replaced_by}",
                )
            if not cancel.cancelled_by_request(session, recovery):
                attempt = attempts.begin(session, recovery, phase, runner)
                return None if attempt is None else convert.attempt(attempt)
        raise Cancelled(
            f"recovery {recovery_id} was cancelled", hint=f"start it over with: cdr resume {recovery_id} --replace"
        )

    @contextmanager
    def fenced(self, recovery_id: str, epoch: int) -> Iterator[FencedTransaction]:
        """One transaction that only the attempt of the current epoch gets; ``Fenced`` for everybody else.

        Commits at the end of the block; an exception rolls all of it back. An empty block asks "am I still the one?".
        """
        with self._database.write() as session:
            yield FencedTransaction(session, recovery_id, epoch)

    def request(self, recovery_id: str, kind: str, args: Json) -> Command:
        """Asks for something (exempt from the fence); the drain takes and answers it. Refused when the recovery ended.

        ``cancel`` has a method of its own.
        """
        if kind == CANCEL:
            return self.cancel(recovery_id)
        with self._database.write() as session:
            recovery = lock_recovery(session, recovery_id)
            if recovery.state.is_final:
                raise Refused(f"recovery {recovery_id} is {recovery.state}: nothing can be asked of it any more")
            return convert.command(requests.request(session, recovery_id, kind, args))

    def refuse_overdue(self, recovery_id: str, timeout: float) -> None:
        """Answer requests whose time is over, as a driver would: between phases and after a crash none runs."""
        with self._database.write() as session:
            lock_recovery(session, recovery_id)
            requests.refuse_overdue(session, recovery_id, timeout)

    def cancel(self, recovery_id: str, *, force: bool = False) -> Command:
        """Cancels: the command is DONE when the recovery is CANCELLED now, REQUESTED when its runner has to stop first.

        Now = no attempt is RUNNING, or ``force`` (its process is known to be dead, or is to be fenced). Asking again is
        harmless. Refused when the recovery is DONE or its commit log has an entry: output is published, or may be.
        """
        with self._database.write() as session:
            recovery = lock_recovery(session, recovery_id)
            return convert.command(cancel.cancel(session, recovery, force=force))
