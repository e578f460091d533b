"""The drain's driver between two polls: ask for checkpoints, collect answers, answer for who does not run, complete.

What it decides is :class:`RecoveryCheckpoints`; here are the files and the rows. Every row is written in a fenced
transaction, and a checkpoint exists only once the database says COMPLETED.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

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
from cdr_core.metadata import Command, CommandState, FencedTransaction, SpillFile
from cdr_core.phases.coordination import while_draining
from cdr_core.phases.draining.mailbox import Mailbox, Request
from cdr_core.phases.draining.resume import RESULT, finished_body
from cdr_core.phases.draining.rows import committable, complete, prepared, write_manifest
from cdr_core.phases.results import SHA256, SUFFIX
from cdr_core.phases.workspace import read_json
from cdr_core.settings import Settings, parse_duration
from cdr_core.storage import join

if TYPE_CHECKING:
    from cdr_core.metadata import Recovery
    from cdr_core.phases.draining.resume import Situation
    from cdr_core.phases.driver import Drive
    from cdr_core.phases.unit import Job

DRAIN = "drain"
"""The grant by which an attempt at the drain holds the spill sets."""

ALIGNED_SHARE = 0.5
"""How much of a checkpoint's time an aligned one may wait: the rest is for the cut and the answers."""

TROUBLE = (OSError, StorageError)
"""What fails a checkpoint and not the drain: its mail or its manifest cannot be written or read now."""


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
        self._rules = rules_for(drive.recovery, drive.settings)
        self._checkpoints = RecoveryCheckpoints(situation.positions, situation.last, self._rules, clock)
        self._asked: dict[int, list[Command]] = {}
        self._handed_over = set(situation.handed_over)
        self._manifests = {int(unit["subtask"]): str(unit["manifest"]) for unit in units.values()}
        self._remade: dict[str, list[SpillFile]] = {}
        self._coordinator = while_draining(drive)

    def accept(self, unit: str, detail: Mapping[str, Any]) -> None:
        """A unit is about to be recorded as finished: it must go on from where its subtask is. From now on nobody but
        the driver answers for it.
        """
        subtask = int(self._units[unit]["subtask"])
        if self._checkpoints.position(subtask) != detail["after"]:
            # Where it goes on from the position, answers that lie here are another attempt's, and void from now on.
            trouble = self._collect()
            if trouble is not None:
                raise trouble
        self._checkpoints.require(subtask, detail["after"])
        self._note_respill({subtask: detail["manifest"]})
        self._checkpoints.finish(subtask, detail["after"])
        file = join(self._job.results, f"{unit}{SUFFIX}")
        self._finished[subtask] = {**detail, RESULT: [file, detail[SHA256]]}

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
        """A user wants a checkpoint; it is answered when that one has ended, or at once where none are taken."""
        if self._job.checkpoints:
            self._trigger(command.args.get("aligned_timeout"), command)
            return
        reason = "CDR_CHECKPOINT_DURING_RECOVERY is off, there is one at the end of the drain"
        with self._drive.fenced() as transaction:
            transaction.answer_command(command.id, CommandState.REFUSED, {"reason": reason, "not_ready": True})

    def _trigger(self, aligned_timeout: float | None, command: Command | None) -> None:
        number = self._checkpoints.trigger()
        if command is not None:
            self._asked.setdefault(number, []).append(command)
        self._tell(CheckpointCoordinator(number))
        with self._drive.fenced() as transaction:
            transaction.begin_checkpoint(number)
        reach("checkpoint.begun")
        if aligned_timeout is not None:
            aligned_timeout = min(aligned_timeout, ALIGNED_SHARE * self._rules.timeout)
        try:
            self._mailbox.ask(Request(number, aligned_timeout))
        except TROUBLE as error:
            self._abort(number, f"nobody could be asked: {error}")
            return
        reach("checkpoint.asked")

    def _collect(self, own: Iterable[Answer] = ()) -> Exception | None:
        """Take the driver's ``own`` answers and those that came. One that cannot be read fails its checkpoint; what was
        wrong with it is returned.
        """
        answers, unreadable = self._look()
        self._take([*own, *answers])
        if unreadable is None:
            return None
        number, error = unreadable
        if number in self._checkpoints.pending:
            self._abort(number, f"its answers could not be read: {error}")
        return error

    def _look(self) -> tuple[list[Answer], tuple[int, Exception] | None]:
        """The answers that count, by number; up to the first number that has one which cannot be read, for they are
        taken in order.
        """
        found: dict[int, list[Answer]] = {}
        unreadable: tuple[int, Exception] | None = None
        # Newest first: a task answers in order, so whoever has answered a later one is then seen in the older ones too.
        for number in reversed(self._checkpoints.open):
            try:
                given = [self._mailbox.given(number, unit) for unit in self._mailbox.answered(number)]
                found[number] = [answer for answer in given if self._checkpoints.wants(answer)]
                for answer in found[number]:
                    self._read_remade(answer)
            except TROUBLE as error:
                found.clear()
                unreadable = number, error
        return [answer for number in sorted(found) for answer in found[number]], unreadable

    def _take(self, answers: Iterable[Answer]) -> None:
        """Make the output that answers name known."""
        came = [a for a in answers if self._checkpoints.receive(a) and a.outcome is Outcome.CUT]
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

    def _read_remade(self, answer: Answer) -> None:
        """Before the answer is taken: afterwards nothing may go wrong until its output is known."""
        manifest = answer.body.get("manifest")
        if manifest is not None and manifest != self._manifests[answer.subtask] and manifest not in self._remade:
            self._remade[manifest] = _files_of(manifest)

    def _note_respill(self, manifests: Mapping[int, str]) -> None:
        """A subtask found its spill set lost and made it again: from now on that one counts."""
        for subtask, manifest in manifests.items():
            if self._manifests[subtask] == manifest:
                continue
            files = self._remade.pop(manifest, None) or _files_of(manifest)
            size = sum(file.bytes for file in files)
            with self._drive.fenced() as transaction:
                host = self._drive.recovery.host_id
                sealed = transaction.seal_spill_set(subtask, manifest, host, files, size, again=True)
                transaction.acquire_grant(sealed.id, DRAIN)
            self._manifests[subtask] = manifest

    def _answer_for_others(self) -> None:
        """Not started = its whole base is still to come; finished = nothing is, and its last output counts now."""
        for number in self._checkpoints.pending:
            if number not in self._checkpoints.pending:
                continue  # given up since
            finished = [each for each in self._checkpoints.unanswered(number) if each in self._finished]
            # No task has a say for a finished one, and a file that one of them made would stand in the way.
            own = [self._finished_answer(number, subtask) for subtask in finished]
            try:
                self._answer_for_waiting(number)
            except TROUBLE as error:
                self._abort(number, f"who has started could not be found out: {error}")
            # Before the next number: what this one hands over must not be handed over again.
            self._collect(own)

    def _answer_for_waiting(self, number: int) -> None:
        unanswered = self._checkpoints.unanswered(number)
        missing = [(self._unit_of[subtask], subtask) for subtask in unanswered if subtask not in self._finished]
        started = self._mailbox.started() if missing else set()
        for unit, subtask in missing:
            if unit not in started:
                self._mailbox.answer(unit, self._not_started_answer(number, subtask))

    def _finished_answer(self, number: int, subtask: int) -> Answer:
        detail = self._finished[subtask]
        files = [file for file in detail["files"] if file["path"] not in self._handed_over]
        position = self._checkpoints.position(subtask)
        return Answer(number, subtask, Outcome.CUT, position, position, finished_body(detail, files))

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
        while stranded := self._checkpoints.stranded():
            self._abort(stranded[0], "subtasks answered a later one instead, which was given up", counted=False)

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
        except TROUBLE as error:
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


def _files_of(manifest: str) -> list[SpillFile]:
    """The files of a set that was made again."""
    return [SpillFile(file["path"], file["bytes"]) for file in read_json(manifest)["files"]]


def rules_for(recovery: Recovery, settings: Settings) -> Rules:
    """The recovery's own interval wins over the setting."""
    own = recovery.settings.get("checkpoint_interval")
    interval = parse_duration(own) if own else settings.checkpoint_interval
    if not settings.checkpoint_during_recovery:
        interval = 0.0
    return Rules(interval, settings.checkpoint_timeout, settings.tolerable_failed_checkpoints)
