"""The driver's side of a phase: units out, finished units into the database while the job runs, the ledger at the end.

Everything written goes through the fence of the attempt's epoch. A phase that is done already returns its stored
result.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from cdr_core.channels.source_index import use_index
from cdr_core.channels.table_shapes import TableShape
from cdr_core.commit.commit_mode import is_per_checkpoint
from cdr_core.errors import Cancelled, CdrError, Fenced, JobFailed, Refused
from cdr_core.faults import reach
from cdr_core.metadata import (
    CANCEL,
    DRAIN_ORDER,
    SOURCES,
    AttemptState,
    Command,
    FencedTransaction,
    Phase,
    Recovery,
    Repository,
    UnitProgress,
)
from cdr_core.planning.plan import Plan
from cdr_core.runtime.executor_backend import Workers
from cdr_core.runtime.pin_file import unpin
from cdr_core.runtime.table_shape_choice import stored_shape
from cdr_core.runtime.unit_progress import read_meters
from cdr_core.runtime.unit_results import SHA256, SUFFIX, UnitResult, is_of_phase, unit_results
from cdr_core.runtime.unit_runner import FETCHED, Finished, Job, load_plan
from cdr_core.runtime.version_check import refuse_other_version
from cdr_core.runtime.workspace import Workspace, write_json
from cdr_core.settings import Settings, parse_duration
from cdr_core.storage import storage_for
from cdr_core.storage.column_codec import decode_columns
from cdr_core.storage.local import host_id
from cdr_core.sweep import sweep_recovery

RECORDED_AT_ONCE = 64
"""Finished units that go into one transaction, at most."""

HEARTBEAT_SECONDS = 1.0
"""How often a driver asks the database what users want and whether it is still the one, however busy it is."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a phase is."""

    phase: str
    units_done: int
    units_total: int
    records: int
    bytes: int
    bytes_total: int | None
    running: Mapping[str, UnitProgress]


Report = Callable[[Progress], None]


class Drive:
    """One attempt at one phase of one recovery."""

    def __init__(
        self, repository: Repository, recovery: Recovery, phase: Phase, epoch: int, settings: Settings
    ) -> None:
        self.repository, self.recovery = repository, recovery
        self.phase, self.epoch, self.settings = phase, epoch, settings
        self.workspace = Workspace(recovery.workspace)

    @property
    def plan_uri(self) -> str:
        """Where the plan lies; `read` makes it."""
        uri = self.repository.recovery(self.recovery.id).plan_uri
        assert uri is not None, "read is done, so a plan exists"
        return uri

    @property
    def plan(self) -> Plan:
        return load_plan(self.plan_uri)

    def fenced(self) -> AbstractContextManager[FencedTransaction]:
        """A transaction that only the newest attempt can have."""
        return self.repository.fenced(self.recovery.id, self.epoch)

    def results(self, phase: Phase) -> list[dict[str, Any]]:
        """What the rows say of the units of a finished phase, in unit order."""
        rows = sorted(self.repository.units(self.recovery.id, phase), key=lambda row: row.unit)
        return [dict(row.result) for row in rows if is_of_phase(row.unit)]

    def columns(self, phase: Phase) -> Iterator[UnitResult]:
        """What the units of a phase left, in unit order, with their columns, one after another."""
        return unit_results(self.repository, self.recovery.id, phase)

    @property
    def sources(self) -> str:
        """The index of the source's objects; empty where an earlier version made the plan."""
        return str((self.repository.recovery(self.recovery.id).plan_summary or {}).get(SOURCES, ""))

    def job(self) -> Job:
        """What travels to the executors."""
        return Job(
            phase=str(self.phase),
            recovery=self.recovery.id,
            epoch=self.epoch,
            root=self.workspace.root,
            plan=self.plan_uri,
            target=self.recovery.target,
            segment_size=self.settings.segment_size,
            spill_file_size=self.settings.spill_file_size,
            page_size=self.settings.page_size,
            memory_budget=self.settings.memory_budget,
            checkpoints=self.settings.checkpoint_during_recovery,
            checkpoint_interval=self.checkpoint_interval,
            output_file_size=self.settings.output_file_size,
            read_back=is_per_checkpoint(self.recovery),
            drain_order=tuple(self.recovery.options.get(DRAIN_ORDER, ())),
            sources=self.sources,
            materialise=self.settings.materialise,
            drain_scratch=self.settings.drain_scratch,
            on_corrupt=self.recovery.options["on_corrupt"],
            scratch=self.settings.scratch,
            shape=self.shape,
        )

    @property
    def checkpoint_interval(self) -> float:
        """Seconds between two recovery checkpoints, 0 = only when asked. The recovery's own wins over the setting."""
        if not self.settings.checkpoint_during_recovery:
            return 0.0
        own = self.recovery.settings.get("checkpoint_interval")
        return parse_duration(own) if own else self.settings.checkpoint_interval

    @property
    def shape(self) -> TableShape:
        """The columns of its table, as was chosen when it was created: that never changes."""
        return stored_shape(self.recovery)


class Watch(Protocol):
    """What a phase does in its driver while its units run, besides recording them. It is entered before they begin, and
    left when all of them are recorded or something was raised.
    """

    def __enter__(self) -> Watch: ...

    def __exit__(self, *raised: Any) -> None: ...

    def accept(self, unit: str, detail: Mapping[str, Any]) -> None:
        """A finished unit is about to be recorded; raise to refuse it."""

    def end_round(self, poll: Callable[[], None]) -> None:
        """All tasks of a round before the last have ended. ``poll`` is the driver's, to be called while waiting."""

    def settle(self, poll: Callable[[], None]) -> None:
        """All units are recorded; wait for what must happen before the phase can end."""

    def poll(self) -> None:
        """One round, after the finished units were recorded."""

    def command(self, command: Command) -> None:
        """A command that a user asked for; the phase that takes it answers it."""


class Recorder:
    """Moves result manifests into the database, in fenced transactions, while the job runs.

    With ``redo`` a unit that an earlier attempt finished is done again: what it looked at may have changed since.
    """

    def __init__(
        self,
        drive: Drive,
        job: Job,
        total: tuple[int, int | None],
        report: Report,
        *,
        redo: bool,
        watch: Watch | None = None,
    ) -> None:
        self._drive, self._job, self._report = drive, job, report
        self._total, self._total_bytes = total
        self._watch = watch
        self._storage = storage_for(job.results)
        rows = drive.repository.units(drive.recovery.id, drive.phase)
        kept = [row for row in rows if not redo or row.epoch == drive.epoch]
        self.recorded = {row.unit for row in kept}
        self._outdated = {row.unit for row in rows} - self.recorded
        self._records, self._bytes = sum(row.records for row in kept), sum(row.bytes for row in kept)
        self._last_asked = time.monotonic()

    def poll(self) -> None:
        """Record what finished since the last call; find out about a successor even when nothing did."""
        listed = {uri.rpartition("/")[2].removesuffix(SUFFIX): uri for uri in self._storage.list(self._job.results)}
        found = [(unit, uri) for unit, uri in listed.items() if unit not in self.recorded]
        for begin in range(0, len(found), RECORDED_AT_ONCE):
            self._record(found[begin : begin + RECORDED_AT_ONCE])
        if self._watch is not None:
            self._watch.poll()
        if time.monotonic() - self._last_asked > HEARTBEAT_SECONDS:
            self._obey()

    def _obey(self) -> None:
        """Do what users asked for meanwhile; asking at all shows whether this attempt is still the one."""
        running = {unit: done for unit, done in read_meters(self._job).items() if unit not in self.recorded}
        with self._drive.fenced() as transaction:
            transaction.set_running(self._drive.phase, running)
            transaction.refuse_overdue(self._drive.settings.checkpoint_timeout)
            taken = transaction.take_commands() if self._watch is not None else transaction.take_commands(CANCEL)
            cancelled = any(command.kind == CANCEL for command in taken)
            others = [command for command in taken if command.kind != CANCEL]
            if cancelled:
                transaction.cancel_recovery()
        self._last_asked = time.monotonic()
        self.report(running)
        if cancelled:
            raise Cancelled(f"recovery {self._drive.recovery.id} was cancelled by its user")
        if self._watch is not None:
            for command in others:
                self._watch.command(command)

    def _record(self, found: Sequence[tuple[str, str]]) -> None:
        """Record finished units, each with the value of its manifest."""
        values: dict[str, dict[str, Any]] = {}
        for unit, manifest in found:
            data = storage_for(manifest).read(manifest)
            values[unit], _ = decode_columns(data)
            values[unit]["detail"][SHA256] = hashlib.sha256(data).hexdigest()
            if self._watch is not None:
                self._watch.accept(unit, values[unit]["detail"])
        reach(f"{self._job.phase}.before-record")
        with self._drive.fenced() as transaction:
            for unit, manifest in found:
                record = transaction.redo_unit if unit in self._outdated else transaction.record_unit
                value = values[unit]
                record(self._drive.phase, unit, manifest, value["records"], value["bytes"], value["detail"])
        reach(f"{self._job.phase}.after-record")
        for unit, value in values.items():
            self.recorded.add(unit)
            self._records += value["records"]
            self._bytes += value["bytes"]
        self.report()

    def report(self, running: Mapping[str, UnitProgress] | None = None) -> None:
        """Report the progress, units under way included."""
        under_way = (running or {}).values()
        self._report(
            Progress(
                phase=self._job.phase,
                units_done=len(self.recorded),
                units_total=self._total,
                records=self._records + sum(unit.records for unit in under_way),
                bytes=self._bytes + sum(unit.bytes for unit in under_way),
                bytes_total=self._total_bytes,
                running=running or {},
            )
        )


def run_phase(
    repository: Repository,
    recovery_id: str,
    phase: Phase,
    epoch: int,
    settings: Settings,
    workers: Workers,
    report: Report,
) -> Mapping[str, Any]:
    """Run a phase under an epoch that was taken for it. Failures are recorded, unless a newer attempt took over."""
    drive = Drive(repository, repository.recovery(recovery_id), phase, epoch, settings)

    def work() -> Mapping[str, Any]:
        return _run(drive, workers, report)

    result = run_attempt(drive, workers, work)
    if phase.successor is None:
        workers.end(drive)
        unpin(drive.recovery)
    return result


def run_attempt(drive: Drive, workers: Workers, work: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Do the work of an attempt, whose failure is recorded unless a newer attempt took over."""
    try:
        _refuse_other_host(drive)
        refuse_other_version(drive.recovery, drive.phase)
        return work()
    except Fenced:
        raise
    except Cancelled:
        workers.end(drive)
        unpin(drive.recovery)
        raise
    except CdrError as error:
        _record_failure(drive, str(error))
        if not error.retry_helps:
            workers.end(drive)
        raise
    except Exception as error:
        _record_failure(drive, f"{type(error).__name__}: {error}")
        raise JobFailed(f"phase {drive.phase} failed: {type(error).__name__}: {error}") from error


def stored_result(repository: Repository, recovery_id: str, phase: Phase) -> Mapping[str, Any]:
    """The result of a phase that is done."""
    row = next(row for row in repository.phases(recovery_id) if row.name == phase)
    return dict(row.result or {})


def _run(drive: Drive, workers: Workers, report: Report) -> Mapping[str, Any]:
    workers.start(drive)
    sweep_before(drive)
    forget_earlier_units(drive)
    module: Any = importlib.import_module(f"cdr_core.phases.{drive.phase}")
    use_index(drive.recovery.source.metadata_sha256, drive.sources)
    units: dict[str, Any] = module.prepare(drive)
    total = len(units), _expected_bytes(drive)
    with drive.fenced() as transaction:
        transaction.set_total(drive.phase, *total)
    job = drive.job()
    redo = getattr(module, "CHECKS_ANEW", False)
    watch: Watch | None = module.watch(drive, job, units) if hasattr(module, "watch") else None
    recorder = Recorder(drive, job, total, report, redo=redo, watch=watch)
    with watch or nullcontext():
        if watch is not None:
            for early in module.rounds(job):
                run_round(drive, workers, recorder, early, units)
                watch.end_round(recorder.poll)
        do_units(drive, workers, recorder, job, units)
        if watch is not None:
            watch.settle(recorder.poll)
    results = drive.results(drive.phase)
    finished: Finished = module.finish(drive, results)
    fetched = sum(result.get(FETCHED, 0) for result in results)
    result = {**finished.result, **({FETCHED: fetched} if fetched else {})}
    reach(f"{drive.phase}.before-done")
    with drive.fenced() as transaction:
        finished.record(transaction)
        transaction.finish_phase(drive.phase, result)
    reach(f"{drive.phase}.after-done")
    with suppress(CdrError, OSError):
        finished.clean_up()
    return result


def do_units(drive: Drive, workers: Workers, recorder: Recorder, job: Job, units: Mapping[str, Any]) -> None:
    """Have every unit done that is not recorded yet; afterwards all of them are."""
    write_json(job.units, units)
    recorder.report()
    pending = [unit for unit in units if unit not in recorder.recorded]
    if pending:
        workers.run(drive, job.to_json(), pending, recorder.poll)
        recorder.poll()
    missing = sorted(set(units) - recorder.recorded)
    if missing:
        raise JobFailed(f"phase {drive.phase} ended without a result of unit {missing[0]}")


def run_round(drive: Drive, workers: Workers, recorder: Recorder, job: Job, units: Mapping[str, Any]) -> None:
    """Have a part of every unit done that is not recorded yet; none of them is recorded by that."""
    write_json(job.units, units)
    pending = [unit for unit in units if unit not in recorder.recorded]
    if pending:
        workers.run(drive, job.to_json(), pending, recorder.poll)


def forget_earlier_units(drive: Drive) -> None:
    """Units of a phase that an earlier version began: this one cuts its work in another way, and does it all again.

    Drained subtasks stay: their output may be published. Commit looks at everything anew anyway.
    """
    if drive.phase in (Phase.DRAIN, Phase.COMMIT):
        return
    rows = drive.repository.units(drive.recovery.id, drive.phase)
    earlier = [row.unit for row in rows if SHA256 not in row.result and is_of_phase(row.unit)]
    if earlier:
        with drive.fenced() as transaction:
            transaction.forget_units(drive.phase, earlier)


def sweep_before(drive: Drive) -> None:
    """Older attempts may have left files that no row names: those that failed or were overtaken, and those that went
    well but had tasks done twice. Such a task's spilled data would take room in the tiers through drain and commit.
    """
    attempts = drive.repository.attempts(drive.recovery.id)
    failed = any(attempt.state in (AttemptState.FAILED, AttemptState.FENCED) for attempt in attempts)
    if failed or drive.phase in (Phase.DRAIN, Phase.COMMIT):
        sweep_recovery(drive.repository, drive.recovery.id, drive.settings)


def _expected_bytes(drive: Drive) -> int:
    """About how many bytes the phase will have handled: for an estimate of the time left, and for nothing else."""
    if drive.phase in (Phase.READ, Phase.FILTER):
        return int(drive.plan.channels.bytes.sum())
    if drive.phase is Phase.COMMIT:
        return sum(entry.bytes for entry in drive.repository.prepared(drive.recovery.id))
    rows = {row.name: row for row in drive.repository.phases(drive.recovery.id)}
    assert drive.phase.predecessor is not None, "only read has none"
    return rows[drive.phase.predecessor].bytes_done


def _refuse_other_host(drive: Drive) -> None:
    """A local workspace exists on one host only; another one would find nothing and must not take that for empty."""
    owner = drive.recovery.host_id
    if owner is not None and owner != host_id():
        raise Refused(
            f"the workspace of recovery {drive.recovery.id} is on another host",
            hint="run it there, or start a recovery to another target here",
        )


def _record_failure(drive: Drive, error: str) -> None:
    """Best effort: the error itself must reach the user even when the database is away. An attempt that was overtaken
    is fenced, whatever else it ran into: its successor may have swept its files.
    """
    try:
        with drive.fenced() as transaction:
            transaction.fail_attempt(error)
    except Fenced:
        raise
    except CdrError:
        return


def as_line(value: Mapping[str, Any]) -> str:
    """A result as the last line of a driver's output."""
    return json.dumps(value, sort_keys=True)
