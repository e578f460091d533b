"""Publication: intent (with the proof) → published → done, and the receipt."""

from __future__ import annotations

import hashlib
import json

from sqlalchemy import func, select

from cdr_core.errors import Refused
from cdr_core.metadata import convert
from cdr_core.metadata.models import CommitLogRow, CoordinatorStateRow, ProofRow, ReceiptRow
from cdr_core.metadata.models.base import utc_now
from cdr_core.metadata.rows import insert_unless_there
from cdr_core.metadata.states import CommitState, move
from cdr_core.metadata.transaction.scope import Scope
from cdr_core.metadata.values import CommitLogEntry, Json


class Commits(Scope):
    def save_coordinator_state(self, commit_user: str, listener_states: Json, version: int = 1) -> None:
        """What the coordinator needs after a crash. The commit user is chosen once: another one is refused."""
        self._refuse_other_user(commit_user)
        row = self._session.get(CoordinatorStateRow, self.recovery_id)
        if row is None:
            row = CoordinatorStateRow(recovery_id=self.recovery_id, commit_user=commit_user)
            self._session.add(row)
        row.listener_states, row.version = dict(listener_states), version
        row.epoch, row.saved_at = self.epoch, utc_now()
        self._session.flush()

    def intend(
        self, commit_user: str, commit_id: int, base: str | None, proof_sha256: str, proof: Json | str
    ) -> CommitLogEntry:
        """From now on the commit may be in the sink. Returns its entry; look at ``state``: it may be published already.

        An entry that is still INTENT takes the new base and proof. Ids grow, the user stays, the proof must have the
        SHA-256 that will be published; anything else is refused.
        """
        body = proof if isinstance(proof, str) else json.dumps(dict(proof), sort_keys=True)
        if hashlib.sha256(body.encode()).hexdigest() != proof_sha256:
            raise Refused(f"the proof of commit {commit_id} does not have the SHA-256 {proof_sha256}")
        self._refuse_other_user(commit_user)
        row = self._session.get(CommitLogRow, (self.recovery_id, commit_user, commit_id))
        if row is not None and row.state is not CommitState.INTENT:
            return convert.commit(row)
        # The proof first: adding it flushes, and an entry without its columns cannot be flushed.
        self._save_proof(proof_sha256, body)
        if row is None:
            row = self._new_intent(commit_user, commit_id)
        row.epoch, row.base, row.proof_sha256, row.intended_at = self.epoch, base, proof_sha256, utc_now()
        self._session.flush()
        return convert.commit(row)

    def published(self, commit_user: str, commit_id: int, location: str, uuid: str | None) -> None:
        """The sink shows the commit at ``location``. Said twice it must be the same place: anything else is refused."""
        row = self._commit(commit_user, commit_id)
        if row.state is CommitState.INTENT:
            row.state = move(row.state, CommitState.PUBLISHED)
            row.location, row.uuid, row.published_at = location, uuid, utc_now()
        elif (row.location, row.uuid) != (location, uuid):
            raise Refused(f"commit {commit_id} of {commit_user} is at {row.location}, it cannot also be at {location}")

    def commit_done(self, commit_user: str, commit_id: int) -> None:
        """Published and cleaned up after. Nothing happens when it is DONE already."""
        row = self._commit(commit_user, commit_id)
        if row.state is not CommitState.DONE:
            row.state = move(row.state, CommitState.DONE)

    def save_receipt(self, receipt: Json) -> None:
        """The receipt; a later one replaces it (a resumed commit writes its own)."""
        row = self._session.get(ReceiptRow, self.recovery_id)
        if row is None:
            row = ReceiptRow(recovery_id=self.recovery_id)
            self._session.add(row)
        row.body, row.epoch, row.saved_at = dict(receipt), self.epoch, utc_now()

    def _commit(self, commit_user: str, commit_id: int) -> CommitLogRow:
        row = self._session.get(CommitLogRow, (self.recovery_id, commit_user, commit_id))
        if row is None:
            raise Refused(f"commit {commit_id} of {commit_user} was never intended in recovery {self.recovery_id}")
        return row

    def _new_intent(self, commit_user: str, commit_id: int) -> CommitLogRow:
        last = self._session.scalars(
            select(func.max(CommitLogRow.commit_id)).where(CommitLogRow.recovery_id == self.recovery_id)
        ).one()
        if last is not None and commit_id < last:
            raise Refused(f"commit {commit_id} of {commit_user} cannot follow {last}: ids only grow")
        row = CommitLogRow(
            recovery_id=self.recovery_id, commit_user=commit_user, commit_id=commit_id, state=CommitState.INTENT
        )
        self._session.add(row)
        return row

    def _refuse_other_user(self, commit_user: str) -> None:
        # A second user would make the sink's look-up blind to what the first one published.
        state = self._session.get(CoordinatorStateRow, self.recovery_id)
        logged = self._session.scalars(
            select(CommitLogRow.commit_user).where(CommitLogRow.recovery_id == self.recovery_id).limit(1)
        ).first()
        for known in (state.commit_user if state else None, logged):
            if known is not None and known != commit_user:
                raise Refused(f"recovery {self.recovery_id} commits as {known}, not as {commit_user}")

    def _save_proof(self, sha256: str, body: str) -> None:
        columns = {
            "recovery_id": self.recovery_id,
            "sha256": sha256,
            "body": body,
            "epoch": self.epoch,
            "saved_at": utc_now(),
        }
        insert_unless_there(self._session, ProofRow, columns, ["recovery_id", "sha256"])
