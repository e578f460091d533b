"""Spill sets: sealed once, kept while a grant on it is held."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select

from cdr_core.errors import Refused
from cdr_core.metadata import convert
from cdr_core.metadata.grants import is_live
from cdr_core.metadata.models import GrantRow, SpillFileRow, SpillSetRow
from cdr_core.metadata.models.base import utc_now
from cdr_core.metadata.states import HAND_OVER, SpillSetState, move
from cdr_core.metadata.transaction.scope import Scope
from cdr_core.metadata.values import SpillFile, SpillSet


class Spill(Scope):
    def seal_spill_set(
        self,
        subtask: int,
        manifest: str,
        host: str | None,
        files: Sequence[SpillFile],
        size: int,
        *,
        again: bool = False,
    ) -> SpillSet:
        """The subtask's spilled data is durable. The same manifest again is nothing new.

        A sealed set of an older epoch becomes LOST; a second one in the same epoch is refused, unless it was made
        ``again`` because the first was lost: then it takes its place, with the grants on it, for its bytes are the
        same.
        """
        sealed = self._sealed(subtask)
        if sealed is not None and sealed.manifest == manifest:
            return convert.spill_set(self._session, sealed, self.epoch)
        if sealed is not None and sealed.epoch == self.epoch and again:
            return self._replace(sealed, manifest, files, size)
        if sealed is not None:
            self._lose(sealed)
        new = SpillSetRow(
            recovery_id=self.recovery_id,
            subtask=subtask,
            epoch=self.epoch,
            manifest=manifest,
            host=host,
            bytes=size,
            state=SpillSetState.SEALED,
        )
        self._session.add(new)
        self._session.flush()
        self._add_files(new.id, files)
        self._session.add(GrantRow(set_id=new.id, holder=HAND_OVER, epoch=self.epoch, durable=True, released=False))
        self._session.flush()
        return convert.spill_set(self._session, new, self.epoch)

    def acquire_grant(self, set_id: int, holder: str, *, durable: bool = False) -> None:
        """Keeps the set's files until the grant is released. Refused once the last one was, or the files are lost.

        A grant that is not durable ends with the attempt: dead attempts keep nothing. A durable one belongs to what
        outlives it, such as a completed checkpoint.
        """
        row = self._set(set_id)
        if row.state is not SpillSetState.SEALED:
            raise Refused(f"spill set {set_id} of recovery {self.recovery_id} is {row.state}: it gives no more grants")
        grant = self._session.get(GrantRow, (set_id, holder))
        if grant is None:
            grant = GrantRow(set_id=set_id, holder=holder)
            self._session.add(grant)
        grant.epoch, grant.durable, grant.released = self.epoch, durable, False

    def release_grant(self, set_id: int, holder: str) -> bool:
        """``True`` when it was the last one: its files may go, and a sealed set is RELEASED. Twice is harmless.

        The hand-over does not keep a LOST set: it went to the one that took its place.
        """
        row = self._set(set_id)
        grant = self._session.get(GrantRow, (set_id, holder))
        if grant is None or grant.released:
            return False
        # Not marked but gone: a recovery may take thousands of checkpoints, each with a grant on every set.
        self._session.delete(grant)
        self._session.flush()
        others = self._session.scalars(select(GrantRow).where(GrantRow.set_id == set_id)).all()
        live = {other.holder for other in others if is_live(other, self.epoch)}
        if row.state is SpillSetState.LOST:
            return not live - {HAND_OVER}
        if row.state is not SpillSetState.SEALED or live:
            return False
        row.state = move(row.state, SpillSetState.RELEASED)
        return True

    def _set(self, set_id: int) -> SpillSetRow:
        row = self._session.get(SpillSetRow, set_id)
        if row is None or row.recovery_id != self.recovery_id:
            raise Refused(f"recovery {self.recovery_id} has no spill set {set_id}")
        return row

    def _sealed(self, subtask: int) -> SpillSetRow | None:
        return self._session.scalars(
            select(SpillSetRow).where(
                SpillSetRow.recovery_id == self.recovery_id,
                SpillSetRow.subtask == subtask,
                SpillSetRow.state == SpillSetState.SEALED,
            )
        ).one_or_none()

    def _replace(self, sealed: SpillSetRow, manifest: str, files: Sequence[SpillFile], size: int) -> SpillSet:
        self._session.execute(delete(SpillFileRow).where(SpillFileRow.set_id == sealed.id))
        sealed.manifest, sealed.bytes, sealed.sealed_at = manifest, size, utc_now()
        self._add_files(sealed.id, files)
        self._session.flush()
        return convert.spill_set(self._session, sealed, self.epoch)

    def _add_files(self, set_id: int, files: Sequence[SpillFile]) -> None:
        self._session.add_all(
            SpillFileRow(set_id=set_id, position=position, path=file.path, bytes=file.bytes)
            for position, file in enumerate(files)
        )

    def _lose(self, sealed: SpillSetRow) -> None:
        if sealed.epoch == self.epoch:
            raise Refused(
                f"subtask {sealed.subtask} has a sealed spill set of this attempt already ({sealed.manifest})"
            )
        sealed.state = move(sealed.state, SpillSetState.LOST)
