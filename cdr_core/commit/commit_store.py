"""The coordinator's durable side: rows of the metadata database, every one written in a fenced transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cdr_core.audit.receipt import proof_sha256
from cdr_core.commit.coordinator import Commit
from cdr_core.commit.publish_once import publish_once
from cdr_core.commit.sinks import Publication, Published, Sink
from cdr_core.commit.sinks.base import COMMIT_ID, COMMIT_USER, GENERATION, PROOF, RECOVERY, SOURCE, WATERMARK
from cdr_core.errors import Refused, other_version
from cdr_core.metadata import CommitState

if TYPE_CHECKING:
    from cdr_core.metadata import CommitLogEntry, FencedTransaction, Recovery, Repository

LISTENER_STATES_VERSION = 1

Proof = Mapping[str, Any]


def commit_user(recovery: str) -> str:
    """Stable over retries and unique per recovery: what a look-up in the target searches for."""
    return f"cdr-{recovery}"


class Rows:
    """The rows of one recovery, as one attempt at it may write them."""

    def __init__(self, repository: Repository, recovery: Recovery, epoch: int) -> None:
        self.repository, self.recovery, self.epoch = repository, recovery, epoch
        self.user = commit_user(recovery.id)

    def fenced(self) -> AbstractContextManager[FencedTransaction]:
        return self.repository.fenced(self.recovery.id, self.epoch)

    @cached_property
    def log(self) -> dict[int, CommitLogEntry]:
        """The commit log by number, as it was found and as it was written since: no other process can write it.

        Read once: who read it anew for every commit would read all that came before, each time.
        """
        return {entry.commit_id: entry for entry in self.repository.commit_log(self.recovery.id)}


class DatabaseStore:
    """See :class:`cdr_core.commit.coordinator.Store`."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def load(self) -> Mapping[str, Any] | None:
        saved = self._rows.repository.coordinator_state(self._rows.recovery.id)
        if saved is None:
            return None
        if saved.version != LISTENER_STATES_VERSION:
            raise other_version("the state of commit listeners", saved.version, LISTENER_STATES_VERSION)
        if saved.commit_user != self._rows.user:
            raise Refused(f"recovery {self._rows.recovery.id} commits as {saved.commit_user}, not as {self._rows.user}")
        return saved.listener_states

    def save(self, listener_states: Mapping[str, Any]) -> None:
        with self._rows.fenced() as transaction:
            transaction.save_coordinator_state(self._rows.user, listener_states, LISTENER_STATES_VERSION)


class DatabaseCommitLog:
    """See :class:`cdr_core.commit.publish_once.CommitLog`."""

    def __init__(self, rows: Rows, commit_id: int, proof: Proof) -> None:
        self._rows, self._commit_id, self._proof = rows, commit_id, proof

    def intended_on(self) -> str | None:
        entry = self._rows.log.get(self._commit_id)
        return None if entry is None else entry.base

    def intend(self, base: str) -> None:
        sha256 = proof_sha256(self._proof)
        with self._rows.fenced() as transaction:
            entry = transaction.intend(self._rows.user, self._commit_id, base, sha256, self._proof)
        self._rows.log[self._commit_id] = entry

    def require_current(self) -> None:
        with self._rows.fenced():
            pass

    def record(self, published: Published) -> None:
        with self._rows.fenced() as transaction:
            transaction.published(self._rows.user, self._commit_id, published.location, published.uuid)
        entry = self._rows.log[self._commit_id]
        self._rows.log[self._commit_id] = replace(entry, state=CommitState.PUBLISHED)


def is_recorded(rows: Rows, commit_id: int) -> bool:
    """Whether a row says where the commit is visible."""
    return commit_id in rows.log and rows.log[commit_id].state is not CommitState.INTENT


def committed(rows: Rows, sink: Sink) -> frozenset[int]:
    """Every commit that the target shows, or that is recorded: no lost row and no forgotten snapshot undoes one."""
    shown = {each.commit_id for each in sink.look_up(rows.user).published}
    return frozenset(shown | {number for number in rows.log if is_recorded(rows, number)})


class TableCommitter:
    """See :class:`cdr_core.commit.coordinator.Committer`: into a table, by the commit protocol.

    ``proof_of`` is asked before a commit is intended and raises if what would be published does not balance. A commit
    without files is published only under the number ``final``: the last one says that the recovery is complete. With
    ``check`` every file's size and bytes are compared with what its writer said, before it can become visible.
    """

    def __init__(
        self,
        rows: Rows,
        sink: Sink,
        proof_of: Callable[[Commit], Proof],
        *,
        final: int | None = None,
        check: bool = False,
    ) -> None:
        self._rows, self._sink, self._proof_of = rows, sink, proof_of
        self._final, self._check = final, check
        self.found: dict[int, bool] = {}

    def committed(self) -> frozenset[int]:
        return committed(self._rows, self._sink)

    def commit(self, commit: Commit) -> bool:
        if not commit.files and commit.commit_id != self._final:
            return False
        if is_recorded(self._rows, commit.commit_id):
            self.found[commit.commit_id] = True
            return True
        proof = self._proof_of(commit)
        if self._check and self._sink.stores and self._sink.look_up(self._rows.user).find(commit.commit_id) is None:
            for file in commit.files:
                self._sink.open_file(file).close()
        log = DatabaseCommitLog(self._rows, commit.commit_id, proof)
        publication = Publication(commit.files, self._properties(commit, proof))
        _, found = publish_once(self._sink, self._rows.user, commit.commit_id, publication, log)
        self.found[commit.commit_id] = found
        return True

    def _properties(self, commit: Commit, proof: Proof) -> dict[str, str]:
        properties = {
            RECOVERY: self._rows.recovery.id,
            COMMIT_USER: self._rows.user,
            COMMIT_ID: str(commit.commit_id),
            "cdr.epoch": str(self._rows.epoch),
            "cdr.source-checkpoint": self._rows.recovery.source.uri,
            SOURCE: self._rows.recovery.source.metadata_sha256,
            "cdr.records": str(commit.records),
            PROOF: proof_sha256(proof),
        }
        if self._rows.recovery.generation > 1:
            properties[GENERATION] = str(self._rows.recovery.generation)
        if commit.watermark is not None:
            properties[WATERMARK] = str(commit.watermark)
        return properties
