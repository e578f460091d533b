"""The drain's driver between two polls: it takes recovery checkpoints from the tasks' snapshots.

When one is taken is decided by :class:`RecoveryCheckpoints`; here are the files and the rows. Every row is written in a
fenced transaction, and a checkpoint exists only once the database says COMPLETED.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from cdr_core.audit.ledger import NOTHING, join_ledgers
from cdr_core.commit.commit_mode import is_per_checkpoint
from cdr_core.commit.committable import Committable
from cdr_core.drain.checkpoint_manifest import manifest_uri, write_manifest
from cdr_core.drain.checkpoint_schedule import RecoveryCheckpoints, Rules
from cdr_core.drain.checkpoint_store import all_output, complete, new_output, prepared
from cdr_core.drain.commit_setup import DRAINED, while_draining
from cdr_core.drain.drain_unit import DrainResult, DrainUnit
from cdr_core.drain.publisher import Publisher
from cdr_core.drain.resume import Progress, SubtaskOutput, prepared_rows, progress_at_start
from cdr_core.drain.snapshots import CutEntry, Snapshots, newest_of
from cdr_core.errors import Corrupt, JobFailed, StorageError
from cdr_core.faults import reach
from cdr_core.log import with_fields
from cdr_core.metadata import NOT_READY, Command, CommandState, FencedTransaction, SpillFile
from cdr_core.runtime.phase_ledgers import described
from cdr_core.runtime.workspace import read_json

if TYPE_CHECKING:
    from cdr_core.runtime.driver import PhaseRun
    from cdr_core.runtime.unit_runner import Job

log = logging.getLogger(__name__)

DRAIN = "drain"
"""The grant by which an attempt at the drain holds the spill sets."""

GRACE_SECONDS = 0.5
"""How long a checkpoint waits for the tasks to close their files. A task that is stuck in a write delays it no longer
than this; one that works makes the checkpoint hold what was drained up to the request.
"""

POLL_SECONDS = 0.1
"""Between two looks of a driver that waits for a checkpoint or a publication."""

ALIGNED_SHARE = 0.5
"""How much of a checkpoint's time it may wait for newer snapshots: the rest is for reading them."""

TROUBLE = (OSError, StorageError, Corrupt)
"""What fails a checkpoint and not the drain: a snapshot cannot be read, or the manifest cannot be written, now."""


class DrainWatch:
    """See the module. ``accept`` is asked before a finished unit is recorded, ``poll`` after every look at results."""

    def __init__(
        self,
        run: PhaseRun,
        job: Job,
        units: Mapping[str, DrainUnit],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._drive, self._job, self._units = run, job, units
        self._unit_of = {unit.subtask: name for name, unit in units.items()}
        self._snapshots = Snapshots(job.directory)
        self._progress = progress_at_start(run, units)
        rows = prepared_rows(run)
        self._known, self._stray = set(rows.settled), rows.stray
        self._accepted = {subtask for subtask, each in self._progress.items() if each.entry.final}
        rules = Rules(
            run.checkpoint_interval, run.settings.checkpoint_timeout, run.settings.tolerable_failed_checkpoints
        )
        last = max((row.checkpoint_id for row in run.repository.checkpoints(run.recovery.id)), default=0)
        self._checkpoints = RecoveryCheckpoints(last, rules, clock)
        self._asked: dict[int, list[Command]] = {}
        self._trouble: Exception | None = None
        self._listed: list[tuple[str, int]] = []
        self._completed = 0
        self._needed: dict[int, frozenset[str]] = {}
        self._publisher = publisher_of(run)

    def __enter__(self) -> DrainWatch:
        if self._publisher is not None:
            self._publisher.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        """Everything is published when this returns, unless something was raised."""
        if self._publisher is not None:
            self._publisher.__exit__(*raised)

    def accept(self, unit: str, result: DrainResult) -> None:
        """A unit is about to be recorded as finished: its final snapshot must be the end of the subtask's chain.

        Snapshots are removed only below the newest that the driver has seen. A task that slept meanwhile may have
        created a lower number anew, and then ends a chain of its own.
        """
        subtask = self._units[unit].subtask
        if result.snapshot_number < self._progress[subtask].number:
            raise JobFailed(
                f"subtask {subtask} was drained by two tasks at once: one ended with snapshot "
                f"{result.snapshot_number}, the other is at {self._progress[subtask].number}",
                hint="run the phase again, it goes on from the last complete recovery checkpoint",
            )
        if result.manifest != self._progress[subtask].entry.manifest:
            self._note_respill(subtask, result.manifest)
            entry = msgspec.structs.replace(self._progress[subtask].entry, manifest=result.manifest)
            self._progress[subtask] = replace(self._progress[subtask], entry=entry)
        self._accepted.add(subtask)

    def end_round(self, poll: Callable[[], None]) -> None:
        """An exchange is drained everywhere. Where output is published while draining, it is before the next begins."""
        if self._publisher is None:
            return
        before = self._completed
        while self._completed == before:  # one that is given up is counted, and too many fail the attempt
            self._trigger(None, None)
            while self._checkpoints.pending:
                poll()
                time.sleep(POLL_SECONDS)
        self.settle(poll)

    def settle(self, poll: Callable[[], None]) -> None:
        """Wait until everything that was handed over is published. A target may not answer for long, so ``poll`` hears
        users meanwhile; it raises what a publication failed with.
        """
        while self._publisher is not None and not self._publisher.is_idle:
            poll()
            time.sleep(POLL_SECONDS)

    def poll(self) -> None:
        """One round. Trouble with files fails a checkpoint, and only when its time is over."""
        if self._publisher is not None:
            self._publisher.check()
        if self._checkpoints.is_due() and len(self._accepted) < len(self._units):
            self._trigger(None, None)
        if not self._checkpoints.pending:
            return
        try:
            self._look()
            ready = self._checkpoints.ready(self._running())
            if ready is not None:
                self._complete(ready)
            self._trouble = None
        except TROUBLE as error:
            self._trouble = error
        for number in self._checkpoints.overdue():
            self._abort(number, str(self._trouble or "its subtasks made no snapshot in time"))

    def command(self, command: Command) -> None:
        """A user wants a checkpoint; it is answered when that one has ended, or at once where none are taken."""
        if self._job.checkpoints:
            self._trigger(command.args.get("aligned_timeout"), command)
            self.poll()
            return
        reason = "CDR_CHECKPOINT_DURING_RECOVERY is off, there is one at the end of the drain"
        with self._drive.fenced() as transaction:
            transaction.answer_command(command.id, CommandState.REFUSED, {"reason": reason, NOT_READY: True})

    def _trigger(self, aligned_timeout: float | None, command: Command | None) -> None:
        with suppress(*TROUBLE):
            self._look()
        wait = min(max(aligned_timeout or 0.0, GRACE_SECONDS), ALIGNED_SHARE * self._drive.settings.checkpoint_timeout)
        number = self._checkpoints.trigger(wait, self._running())
        if command is not None:
            self._asked.setdefault(number, []).append(command)
        with self._drive.fenced() as transaction:
            transaction.begin_checkpoint(number)
        reach("checkpoint.begun")
        if command is not None:
            with suppress(*TROUBLE):  # the newest snapshots will do
                self._snapshots.ask(number)
        reach("checkpoint.asked")

    def _running(self) -> dict[int, int]:
        """The newest snapshots of the subtasks that are at work."""
        return {
            subtask: each.number for subtask, each in self._progress.items() if each.number and not each.entry.final
        }

    def _look(self) -> None:
        """Take notice of new snapshots."""
        self._listed = self._snapshots.listed()
        for unit, number in newest_of(self._listed).items():
            subtask = self._units[unit].subtask
            if number > self._progress[subtask].number:
                self._take(unit, subtask, number)

    def _take(self, unit: str, subtask: int, number: int) -> None:
        stored = self._snapshots.read(unit, number)
        cut, before = stored.snapshot.cut, self._progress[subtask]
        if cut.files[: len(before.output.files)] != before.output.files:
            raise JobFailed(f"a snapshot of subtask {subtask} does not name the files of the one before")
        if cut.manifest != before.entry.manifest:
            self._note_respill(subtask, cut.manifest)
        ledger = NOTHING if self._publisher is None else cut.ledger
        output = SubtaskOutput(cut.files, cut.watermark)
        self._progress[subtask] = Progress(CutEntry.of(stored), output, number, ledger)
        log.debug("snapshot seen", extra=with_fields(subtask=subtask, snapshot=number, files=len(cut.files)))

    def _note_respill(self, subtask: int, manifest: str) -> None:
        """A task found its spill set lost and made it again: from now on that one counts."""
        log.info("a lost spill set was made again", extra=with_fields(subtask=subtask))
        files = [SpillFile(file["path"], file["bytes"]) for file in read_json(manifest)["files"]]
        with self._drive.fenced() as transaction:
            host = self._drive.recovery.host_id
            size = sum(file.bytes for file in files)
            sealed = transaction.seal_spill_set(subtask, manifest, host, files, size, again=True)
            transaction.acquire_grant(sealed.id, DRAIN)

    def _abort(self, number: int, reason: str) -> None:
        with self._drive.fenced() as transaction:
            transaction.abort_checkpoint(number, reason)
            self._reply(transaction, number, CommandState.REFUSED, {"checkpoint": number, "reason": reason})
        self._checkpoints.abort(number)
        log.warning("recovery checkpoint given up: %s", reason, extra=with_fields(checkpoint=number))

    def _complete(self, number: int) -> None:
        """Manifest first, then everything the database must know about it in one transaction."""
        entries = [each.entry for each in self._progress.values()]
        try:
            manifest, sha256 = write_manifest(self._drive, number, entries)
            reach("checkpoint.manifest")
        except TROUBLE as error:
            raise StorageError(f"its manifest could not be written: {error}") from error
        committables = self._committables(number)
        kept = any(self._asked.get(pending) for pending in self._checkpoints.pending if pending <= number)
        result = {"kept": kept, **self._drained(committables)}
        with self._drive.fenced() as transaction:
            record_output(transaction, self._drive, committables, number, self._stray)
            expired = complete(transaction, self._drive, number, manifest, sha256, result)
            for pending in self._checkpoints.pending:
                if pending <= number:
                    reply = {"checkpoint": number, "manifest": manifest}
                    self._reply(transaction, pending, CommandState.DONE, reply)
        reach("checkpoint.completed")
        records = sum(file.records for each in self._progress.values() for file in each.output.files)
        log.info("recovery checkpoint completed", extra=with_fields(checkpoint=number, records=records, asked=kept))
        self._checkpoints.complete(number)
        self._completed = number
        self._needed[number] = frozenset(entry.snapshot for entry in entries)
        self._publish(number, committables)
        self._clear(expired)

    def _committables(self, number: int) -> list[Committable]:
        """The entries that the checkpoint adds to the prepared output."""
        outputs = {subtask: each.output for subtask, each in self._progress.items()}
        if self._publisher is None:
            return all_output(number, outputs)
        return new_output(number, outputs, self._known)

    def _publish(self, number: int, committables: list[Committable]) -> None:
        """Where output is published while draining: it will be."""
        if self._publisher is not None and any(entry.files for entry in committables):
            self._known.update(file.path for entry in committables for file in entry.files)
            self._stray = frozenset()
            self._publisher.publish(number, committables)

    def _drained(self, committables: list[Committable]) -> dict[str, Any]:
        """The ledger of a checkpoint whose output is published by itself, for the proof of that commit."""
        if self._publisher is None or not any(entry.files for entry in committables):
            return {}
        ledger = join_ledgers(each.ledger for each in self._progress.values())
        return {DRAINED: described(self._drive.plan, ledger, subtasks=False)}

    def _clear(self, expired: list[int]) -> None:
        """Remove manifests of expired checkpoints, and the snapshots that no retained one needs, but never a subtask's
        newest.
        """
        manifests = [manifest_uri(self._drive, number) for number in expired if self._needed.pop(number, None)]
        needed = {each.entry.snapshot for each in self._progress.values()}.union(*self._needed.values())
        numbers = {self._unit_of[subtask]: each.number for subtask, each in self._progress.items()}
        passed = [self._snapshots.uri(*each) for each in self._listed if each[1] < numbers[each[0]]]
        self._snapshots.remove([*manifests, *(uri for uri in passed if uri not in needed)])

    def _reply(self, transaction: FencedTransaction, number: int, state: CommandState, reply: dict[str, Any]) -> None:
        for command in self._asked.pop(number, []):
            transaction.answer_command(command.id, state, reply)


def publisher_of(run: PhaseRun) -> Publisher | None:
    """``None`` where all is published at the end."""
    return Publisher(lambda: while_draining(run), run.epoch) if is_per_checkpoint(run.recovery) else None


def record_output(
    transaction: FencedTransaction,
    run: PhaseRun,
    entries: list[Committable],
    number: int,
    stray: Collection[int],
    *,
    final: bool = False,
) -> None:
    """The entries of a checkpoint. Where all is published at the end they hold what those before them held, which go;
    where each checkpoint is published, one without a new file has no entries unless it is the ``final`` one, and those
    of ``stray`` numbers, whose files these hold, go.
    """
    if is_per_checkpoint(run.recovery) and not final and not any(entry.files for entry in entries):
        return
    if is_per_checkpoint(run.recovery):
        transaction.forget_prepared(stray)
    for entry in entries:
        transaction.add_prepared(prepared(entry))
    if not is_per_checkpoint(run.recovery):
        transaction.forget_prepared_before(number)
