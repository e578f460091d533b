"""The driver's side of a phase: units out, finished units into the database while the job runs, the ledger at the end.

Everything written goes through the fence of the attempt's epoch. A phase that is done already returns its stored
result.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from cdr_core.channels.source_index import use_index
from cdr_core.channels.table_shapes import TableShape
from cdr_core.commit.commit_mode import is_per_checkpoint
from cdr_core.errors import Cancelled, CdrError, Fenced, JobFailed, Refused
from cdr_core.faults import reach
from cdr_core.log import log_fields, with_fields
from cdr_core.metadata import (
    CANCEL,
    AttemptState,
    FencedTransaction,
    Phase,
    Recovery,
    Repository,
    UnitProgress,
)
from cdr_core.planning.plan import Plan
from cdr_core.runtime.executor_backend import Workers
from cdr_core.runtime.phase_definition import Watch, definition_of
from cdr_core.runtime.pin_file import unpin
from cdr_core.runtime.table_shape_choice import stored_shape
from cdr_core.runtime.unit_progress import read_meters
from cdr_core.runtime.unit_results import SUFFIX, R, UnitOutput, is_of_phase, unit_outputs, unit_results
from cdr_core.runtime.unit_runner import Job, load_plan, write_units
from cdr_core.runtime.version_check import refuse_other_version
from cdr_core.runtime.workspace import Workspace
from cdr_core.settings import Settings, parse_duration
from cdr_core.storage import storage_for
from cdr_core.storage.column_codec import decode_columns
from cdr_core.storage.local import host_id
from cdr_core.sweep import sweep_recovery

log = logging.getLogger(__name__)

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


class PhaseRun:
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

    def results(self, kind: type[R]) -> list[R]:
        """What the rows say of the units of a finished phase, in unit order."""
        return unit_results(self.repository, self.recovery.id, kind)

    def outputs(self, kind: type[R]) -> Iterator[UnitOutput[R]]:
        """What the units of a phase left, in unit order, with their columns, one after another."""
        return unit_outputs(self.repository, self.recovery.id, kind)

    @property
    def sources(self) -> str:
        """The index of the source's objects; empty where an earlier version made the plan."""
        return self.repository.recovery(self.recovery.id).sources

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
            drain_order=self.recovery.options.drain_order,
            sources=self.sources,
            materialise=self.settings.materialise,
            drain_scratch=self.settings.drain_scratch,
            on_corrupt=self.recovery.options.on_corrupt,
            scratch=self.settings.scratch,
            log_level=self.settings.log_level,
            log_format=self.settings.log_format,
            shape=self.shape,
        )

    @property
    def checkpoint_interval(self) -> float:
        """Seconds between two recovery checkpoints, 0 = only when asked. The recovery's own wins over the setting."""
        if not self.settings.checkpoint_during_recovery:
            return 0.0
        own = self.recovery.settings.checkpoint_interval
        return parse_duration(own) if own else self.settings.checkpoint_interval

    @property
    def shape(self) -> TableShape:
        """The columns of its table, as was chosen when it was created: that never changes."""
        return stored_shape(self.recovery)


class Recorder:
    """Moves result manifests into the database, in fenced transactions, while the job runs.

    With ``redo`` a unit that an earlier attempt finished is done again: what it looked at may have changed since.
    """

    def __init__(
        self,
        run: PhaseRun,
        job: Job,
        total: tuple[int, int | None],
        report: Report,
        *,
        redo: bool,
        watch: Watch[Any] | None = None,
    ) -> None:
        self._run, self._job, self._report = run, job, report
        self._definition = definition_of(run.phase)
        self._total, self._total_bytes = total
        self._watch = watch
        self._storage = storage_for(job.results)
        rows = run.repository.units(run.recovery.id, run.phase)
        kept = [row for row in rows if not redo or row.epoch == run.epoch]
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
        with self._run.fenced() as transaction:
            transaction.set_running(self._run.phase, running)
            transaction.refuse_overdue(self._run.settings.checkpoint_timeout)
            taken = transaction.take_commands() if self._watch is not None else transaction.take_commands(CANCEL)
            cancelled = any(command.kind == CANCEL for command in taken)
            others = [command for command in taken if command.kind != CANCEL]
            if cancelled:
                transaction.cancel_recovery()
        self._last_asked = time.monotonic()
        self.report(running)
        if cancelled:
            raise Cancelled(f"recovery {self._run.recovery.id} was cancelled by its user")
        if self._watch is not None:
            for command in others:
                self._watch.command(command)

    def _record(self, found: Sequence[tuple[str, str]]) -> None:
        """Record finished units, each with the value of its manifest."""
        values: dict[str, dict[str, Any]] = {}
        for unit, manifest in found:
            data = storage_for(manifest).read(manifest)
            values[unit], _ = decode_columns(data)
            values[unit]["detail"]["sha256"] = hashlib.sha256(data).hexdigest()
            if self._watch is not None:
                self._watch.accept(unit, msgspec.convert(values[unit]["detail"], self._definition.result))
        reach(f"{self._job.phase}.before-record")
        with self._run.fenced() as transaction:
            for unit, manifest in found:
                record = transaction.redo_unit if unit in self._outdated else transaction.record_unit
                value = values[unit]
                record(self._run.phase, unit, manifest, value["records"], value["bytes"], value["detail"])
        reach(f"{self._job.phase}.after-record")
        log.debug("units recorded", extra=with_fields(units=",".join(values)))
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
    run = PhaseRun(repository, repository.recovery(recovery_id), phase, epoch, settings)

    def work() -> Mapping[str, Any]:
        return _run(run, workers, report)

    with log_fields(recovery=recovery_id, phase=str(phase), epoch=epoch):
        result = run_attempt(run, workers, work)
    if phase.successor is None:
        workers.end(run)
        unpin(run.recovery)
    return result


def run_attempt(run: PhaseRun, workers: Workers, work: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Do the work of an attempt, whose failure is recorded unless a newer attempt took over."""
    try:
        _refuse_other_host(run)
        refuse_other_version(run.recovery, run.phase)
        return work()
    except Fenced:
        log.warning("a newer attempt took the recovery over")
        raise
    except Cancelled:
        log.info("cancelled by a user")
        workers.end(run)
        unpin(run.recovery)
        raise
    except CdrError as error:
        _record_failure(run, str(error))
        if not error.retry_helps:
            workers.end(run)
        raise
    except Exception as error:
        _record_failure(run, f"{type(error).__name__}: {error}")
        raise JobFailed(f"phase {run.phase} failed: {type(error).__name__}: {error}") from error


def stored_result(repository: Repository, recovery_id: str, phase: Phase) -> Mapping[str, Any]:
    """The result of a phase that is done."""
    row = next(row for row in repository.phases(recovery_id) if row.name == phase)
    return dict(row.result or {})


def _run(run: PhaseRun, workers: Workers, report: Report) -> Mapping[str, Any]:
    begun = time.monotonic()
    workers.start(run)
    sweep_before(run)
    forget_earlier_units(run)
    phase = definition_of(run.phase)
    use_index(run.recovery.source.metadata_sha256, run.sources)
    units = phase.prepare(run)
    total = len(units), _expected_bytes(run)
    with run.fenced() as transaction:
        transaction.set_total(run.phase, *total)
    log.info("phase started", extra=with_fields(units=total[0], bytes=total[1]))
    job = run.job()
    watch = None if phase.watch is None else phase.watch(run, job, units)
    recorder = Recorder(run, job, total, report, redo=phase.checks_anew, watch=watch)
    with watch or nullcontext():
        if watch is not None:
            for early in phase.rounds(job):
                run_round(run, workers, recorder, early, units)
                watch.end_round(recorder.poll)
        do_units(run, workers, recorder, job, units)
        if watch is not None:
            watch.settle(recorder.poll)
    results = run.results(phase.result)
    finished = phase.finish(run, results)
    fetched = sum(result.fetched_bytes for result in results)
    result = {**finished.result, **({"fetched_bytes": fetched} if fetched else {})}
    reach(f"{run.phase}.before-done")
    with run.fenced() as transaction:
        finished.record(transaction)
        transaction.finish_phase(run.phase, result)
    reach(f"{run.phase}.after-done")
    seconds = round(time.monotonic() - begun, 3)
    log.info("phase done", extra=with_fields(records=result.get("records"), seconds=seconds, fetched_bytes=fetched))
    with suppress(CdrError, OSError):
        finished.clean_up()
    return result


def do_units(run: PhaseRun, workers: Workers, recorder: Recorder, job: Job, units: Mapping[str, Any]) -> None:
    """Have every unit done that is not recorded yet; afterwards all of them are."""
    write_units(job, units)
    recorder.report()
    pending = [unit for unit in units if unit not in recorder.recorded]
    if pending:
        workers.run(run, job.to_json(), pending, recorder.poll)
        recorder.poll()
    missing = sorted(set(units) - recorder.recorded)
    if missing:
        raise JobFailed(f"phase {run.phase} ended without a result of unit {missing[0]}")


def run_round(run: PhaseRun, workers: Workers, recorder: Recorder, job: Job, units: Mapping[str, Any]) -> None:
    """Have a part of every unit done that is not recorded yet; none of them is recorded by that."""
    write_units(job, units)
    pending = [unit for unit in units if unit not in recorder.recorded]
    if pending:
        workers.run(run, job.to_json(), pending, recorder.poll)


def forget_earlier_units(run: PhaseRun) -> None:
    """Units of a phase that an earlier version began: this one cuts its work in another way, and does it all again.

    Drained subtasks stay: their output may be published. Commit looks at everything anew anyway.
    """
    if run.phase in (Phase.DRAIN, Phase.COMMIT):
        return
    rows = run.repository.units(run.recovery.id, run.phase)
    earlier = [row.unit for row in rows if "sha256" not in row.result and is_of_phase(row.unit)]
    if earlier:
        log.info("units of an earlier version are done again", extra=with_fields(units=len(earlier)))
        with run.fenced() as transaction:
            transaction.forget_units(run.phase, earlier)


def sweep_before(run: PhaseRun) -> None:
    """Older attempts may have left files that no row names: those that failed or were overtaken, and those that went
    well but had tasks done twice. Such a task's spilled data would take room in the tiers through drain and commit.
    """
    attempts = run.repository.attempts(run.recovery.id)
    failed = any(attempt.state in (AttemptState.FAILED, AttemptState.FENCED) for attempt in attempts)
    if failed or run.phase in (Phase.DRAIN, Phase.COMMIT):
        sweep_recovery(run.repository, run.recovery.id, run.settings)


def _expected_bytes(run: PhaseRun) -> int:
    """About how many bytes the phase will have handled: for an estimate of the time left, and for nothing else."""
    if run.phase in (Phase.READ, Phase.FILTER):
        return int(run.plan.channels.bytes.sum())
    if run.phase is Phase.COMMIT:
        return sum(entry.bytes for entry in run.repository.prepared(run.recovery.id))
    rows = {row.name: row for row in run.repository.phases(run.recovery.id)}
    assert run.phase.predecessor is not None, "only read has none"
    return rows[run.phase.predecessor].bytes_done


def _refuse_other_host(run: PhaseRun) -> None:
    """A local workspace exists on one host only; another one would find nothing and must not take that for empty."""
    owner = run.recovery.host_id
    if owner is not None and owner != host_id():
        raise Refused(
            f"the workspace of recovery {run.recovery.id} is on another host",
            hint="run it there, or start a recovery to another target here",
        )


def _record_failure(run: PhaseRun, error: str) -> None:
    """Best effort: the error itself must reach the user even when the database is away. An attempt that was overtaken
    is fenced, whatever else it ran into: its successor may have swept its files.
    """
    try:
        with run.fenced() as transaction:
            transaction.fail_attempt(error)
        log.error("attempt failed: %s", error)
    except Fenced:
        raise
    except CdrError:
        return


def as_line(value: Mapping[str, Any]) -> str:
    """A result as the last line of a driver's output."""
    return json.dumps(value, sort_keys=True)
