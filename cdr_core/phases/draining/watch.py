"""The drain's driver between two polls: ask for checkpoints, collect answers, answer for who does not run, complete.

What it decides is :class:`RecoveryCheckpoints`; here are the files and the rows. Every row is written in a fenced
transaction, and a checkpoint exists only once the database says COMPLETED.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cdr_core.commit.committable import Committable, PreparedFile
from cdr_core.commit.events import (
    CheckpointAborted,
    CheckpointComplete,
    CheckpointCoordinator,
    CommittableEvent,
    Event,
)
from cdr_core.drain.checkpoints import Answer, Outcome, RecoveryCheckpoints, Rules
from cdr_core.errors import StorageError
from cdr_core.faults import reach
from cdr_core.metadata import (
    Command,
    CommandState,
    FencedTransaction,
    Prepared,
    RecoveryCheckpointState,
    SpillFile,
    SpillSetState,
)
from cdr_core.phases.coordination import while_draining
from cdr_core.phases.draining.mailbox import Mailbox, Request, cut_body
from cdr_core.phases.draining.said import NOTHING_SAID
from cdr_core.phases.workspace import read_json
from cdr_core.settings import Settings, parse_duration
from cdr_core.spill.segments import SpillSet
from cdr_core.storage import join, storage_for

if TYPE_CHECKING:
    from cdr_core.metadata import Recovery
    from cdr_core.phases.draining.resume import Situation
    from cdr_core.phases.driver import Drive
    from cdr_core.phases.unit import Job

DRAIN = "drain"
"""The grant by which an attempt at the drain holds the spill sets."""


class DrainWatch:
    """See the module. ``accept`` is asked before a finished unit is recorded, ``poll`` after every look at results."""

    def __init__(
        self,
        drive: Drive,
        job: Job,
        units: Mapping[str, Mapping[str, Any]],
        situation: Situation,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._drive, self._job, self._units = drive, job, units
        self._unit_of = {int(unit["subtask"]): name for name, unit in units.items()}
        self._mailbox = Mailbox(job.directory)
        self._finished: dict[int, Mapping[str, Any]] = dict(situation.finished)
        self._bases = dict(situation.bases)
        self._checkpoints = RecoveryCheckpoints(
            situation.positions, situation.last, rules_for(drive.recovery, drive.settings), clock
        )
        self._asked: dict[int, list[Command]] = {}
        self._handed_over = set(situation.handed_over)
        self._manifests = {int(unit["subtask"]): str(unit["manifest"]) for unit in units.values()}
        self._coordinator = while_draining(drive)

    def accept(self, unit: str, detail: Mapping[str, Any]) -> None:
        """A unit is about to be recorded as finished: it must go on from where its subtask is."""
        self._collect()
        subtask = int(self._units[unit]["subtask"])
        self._checkpoints.require(subtask, detail["after"])
        self._note_respill({subtask: detail["manifest"]})
        self._finished[subtask] = detail

    def poll(self) -> None:
        """One round. Whatever fails here is a failed checkpoint, unless it is the fence or the database."""
        if self._checkpoints.is_due() and len(self._finished) < len(self._units):
            self._trigger(None, None)
        self._collect()
        self._answer_for_others()
        self._give_up()
        ready = self._checkpoints.ready()
        if ready is not None:
            self._complete(ready)

    def command(self, command: Command) -> None:
        """A user wants a checkpoint; it is answered when that one has ended."""
        self._trigger(command.args.get("aligned_timeout"), command)

    def _trigger(self, aligned_timeout: float | None, command: Command | None) -> None:
        number = self._checkpoints.trigger()
        self._tell(CheckpointCoordinator(number))
        with self._drive.fenced() as transaction:
            transaction.begin_checkpoint(number)
        reach("checkpoint.begun")
        self._mailbox.ask(Request(number, aligned_timeout))
        reach("checkpoint.asked")
        if command is not None:
            self._asked.setdefault(number, []).append(command)

    def _collect(self) -> None:
        """Take the answers that came, and make the output they name known."""
        came = []
        # Newest first: a task answers in order, so whoever has answered a later one is then seen in the older ones too.
        answered = {number: self._mailbox.answered(number) for number in reversed(self._checkpoints.open)}
        for number in self._checkpoints.open:
            for unit in answered[number]:
                answer = self._mailbox.given(number, unit)
                if self._checkpoints.receive(answer) and answer.outcome is Outcome.CUT:
                    came.append(answer)
        if not came:
            return
        self._note_respill({answer.subtask: answer.body["manifest"] for answer in came})
        reach("checkpoint.before-prepared")
        with self._drive.fenced() as transaction:
            for answer in came:
                transaction.add_prepared(prepared(committable(answer)))
        reach("checkpoint.after-prepared")
        for answer in came:
            self._tell(CommittableEvent(committable(answer), self._drive.epoch))
            self._handed_over.update(file["path"] for file in answer.body["files"])

    def _note_respill(self, manifests: Mapping[int, str]) -> None:
        """A subtask found its spill set lost and made it again: from now on that one counts."""
        for subtask, manifest in manifests.items():
            if self._manifests[subtask] == manifest:
                continue
            spill_set = SpillSet.from_json(read_json(manifest))
            files = [SpillFile(file.path, file.bytes) for file in spill_set.files]
            size = sum(file.bytes for file in files)
            with self._drive.fenced() as transaction:
                host = self._drive.recovery.host_id
                sealed = transaction.seal_spill_set(subtask, manifest, host, files, size, again=True)
                transaction.acquire_grant(sealed.id, DRAIN)
            self._manifests[subtask] = manifest

    def _answer_for_others(self) -> None:
        """Not started = its whole base is still to come; finished = nothing is, and its last output counts now."""
        started = self._mailbox.started() if self._checkpoints.pending else set()
        for number in self._checkpoints.pending:
            for subtask in self._checkpoints.unanswered(number):
                unit = self._unit_of[subtask]
                if subtask in self._finished:
                    self._mailbox.answer(unit, self._finished_answer(number, subtask))
                elif unit not in started:
                    self._mailbox.answer(unit, self._not_started_answer(number, subtask))
            # Before the next number: what this one hands over must not be handed over again.
            self._collect()

    def _finished_answer(self, number: int, subtask: int) -> Answer:
        detail = self._finished[subtask]
        files = [file for file in detail["files"] if file["path"] not in self._handed_over]
        position = self._checkpoints.position(subtask)
        body = cut_body(files, None, detail["ledger"], {}, detail["manifest"], detail.get("said", NOTHING_SAID))
        return Answer(number, subtask, Outcome.CUT, position, position, body)

    def _not_started_answer(self, number: int, subtask: int) -> Answer:
        position = self._checkpoints.position(subtask)
        base = self._bases[subtask]
        return Answer(number, subtask, Outcome.CUT, position, position, {**base, "files": []})

    def _give_up(self) -> None:
        for answer in self._checkpoints.refusals():
            counted = answer.outcome is Outcome.DECLINED
            self._abort(answer.checkpoint, answer.reason or str(answer.outcome), counted=counted)
        for number in self._checkpoints.overdue():
            self._abort(number, f"not answered by {len(self._checkpoints.unanswered(number))} subtasks in time")

    def _abort(self, number: int, reason: str, *, counted: bool = True) -> None:
        with self._drive.fenced() as transaction:
            transaction.abort_checkpoint(number, reason)
            self._reply(transaction, number, CommandState.REFUSED, {"checkpoint": number, "reason": reason})
        self._tell(CheckpointAborted(number))
        self._checkpoints.abort(number, counted=counted)

    def _complete(self, number: int) -> None:
        """Manifest first, then everything the database must know about it in one transaction."""
        answers = self._checkpoints.answers(number)
        try:
            manifest, sha256 = write_manifest(self._drive, number, answers)
            reach("checkpoint.manifest")
        except (OSError, StorageError) as error:
            self._abort(number, f"its manifest could not be written: {error}")
            return
        kept = bool(self._asked.get(number))
        with self._drive.fenced() as transaction:
            complete(transaction, self._drive, number, manifest, sha256, kept=kept)
            for older in (*self._checkpoints.pending, number):
                if older <= number:
                    reply = {"checkpoint": number, "manifest": manifest}
                    self._reply(transaction, older, CommandState.DONE, reply)
        reach("checkpoint.completed")
        self._checkpoints.complete(number)
        self._tell(CheckpointComplete(number))

    def _tell(self, event: Event) -> None:
        """Where output is published while draining: all that may be published now is, when this returns."""
        if self._coordinator is not None:
            self._coordinator.deliver(event)

    def _reply(self, transaction: FencedTransaction, number: int, state: CommandState, reply: dict[str, Any]) -> None:
        for command in self._asked.pop(number, []):
            transaction.answer_command(command.id, state, reply)


def rules_for(recovery: Recovery, settings: Settings) -> Rules:
    """The recovery's own interval wins over the setting."""
    own = recovery.settings.get("checkpoint_interval")
    interval = parse_duration(own) if own else settings.checkpoint_interval
    if not settings.checkpoint_during_recovery:
        interval = 0.0
    return Rules(interval, settings.checkpoint_timeout, settings.tolerable_failed_checkpoints)


def committable(answer: Answer) -> Committable:
    """A subtask's entry for a checkpoint; there is one even when it holds no file."""
    files = tuple(PreparedFile.from_json(file) for file in answer.body["files"])
    said = answer.body.get("said", NOTHING_SAID)
    return Committable(answer.subtask, answer.checkpoint, files, said["watermark"], said["idle"])


def prepared(entry: Committable) -> Prepared:
    """The row of an entry."""
    text = json.dumps(entry.to_json(), sort_keys=True)
    return Prepared(
        subtask=entry.subtask,
        checkpoint_id=entry.checkpoint_id,
        manifest=text,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        records=entry.records,
        bytes=entry.bytes,
        watermark=entry.watermark,
        idle=entry.idle,
    )


def write_manifest(drive: Drive, number: int, answers: Any) -> tuple[str, str]:
    """The manifest of a recovery checkpoint: where each subtask goes on. Its place and SHA-256."""
    uri = join(drive.workspace.attempt(drive.epoch, "checkpoints"), f"{number:06d}.json")
    cuts = {str(a.subtask): {"position": a.position, "body": dict(a.body)} for a in answers}
    data = json.dumps({"version": 1, "checkpoint": number, "cuts": cuts}, sort_keys=True).encode()
    storage_for(uri).create(uri, data)
    return uri, hashlib.sha256(data).hexdigest()


def complete(
    transaction: FencedTransaction, drive: Drive, number: int, manifest: str, sha256: str, *, kept: bool
) -> None:
    """COMPLETED, with a grant on every spill set it refers to; older ones that nobody asked for expire."""
    sets = [each for each in drive.repository.spill_sets(drive.recovery.id) if each.state is SpillSetState.SEALED]
    transaction.complete_checkpoint(number, manifest, sha256, {"kept": kept})
    for spill_set in sets:
        transaction.acquire_grant(spill_set.id, holder(number), durable=True)
    held = [
        row
        for row in drive.repository.checkpoints(drive.recovery.id)
        if row.state is RecoveryCheckpointState.COMPLETED and not (row.result or {}).get("kept")
    ]
    # The new one counts among those that are retained, and this list was read before it was there.
    too_many = len(held) - (drive.settings.retained_checkpoints - 1)
    for old in held[: max(too_many, 0)]:
        transaction.expire_checkpoint(old.checkpoint_id, f"{number} completed")
        for spill_set in sets:
            transaction.release_grant(spill_set.id, holder(old.checkpoint_id))


def holder(checkpoint: int) -> str:
    """The name under which a recovery checkpoint holds its spill sets."""
    return f"checkpoint-{checkpoint}"
