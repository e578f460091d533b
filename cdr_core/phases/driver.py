"""The driver's side of a phase: units out, finished units into the database while the job runs, the ledger at the end.

Everything written goes through the fence of the attempt's epoch. A phase that is done already returns its stored
result.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

from cdr_core.errors import Cancelled, CdrError, Fenced, JobFailed, Refused
from cdr_core.faults import reach
from cdr_core.metadata import CANCEL, CommandState, FencedTransaction, Phase, Recovery, Repository
from cdr_core.phases.unit import Finished, Job, load_plan
from cdr_core.phases.workers import Workers
from cdr_core.phases.workspace import Workspace, read_json, write_json
from cdr_core.rescale.plan import Plan
from cdr_core.settings import Settings
from cdr_core.storage import storage_for
from cdr_core.storage.local import host_id

HEARTBEAT_SECONDS = 2.0
"""How often an idle driver asks the database whether it is still the one."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a phase is."""

    phase: str
    units_done: int
    units_total: int
    records: int
    bytes: int


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
        """What the units of a finished phase left, in unit order."""
        rows = sorted(self.repository.units(self.recovery.id, phase), key=lambda row: row.unit)
        return [dict(row.result) for row in rows]

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
        )


class Recorder:
    """Moves result manifests into the database, one fenced transaction a unit, while the job runs.

    With ``redo`` a unit that an earlier attempt finished is done again: what it looked at may have changed since.
    """

    def __init__(self, drive: Drive, job: Job, total: int, report: Report, redo: bool) -> None:
        self._drive, self._job, self._total, self._report = drive, job, total, report
        self._storage = storage_for(job.results)
        rows = drive.repository.units(drive.recovery.id, drive.phase)
        kept = [row for row in rows if not redo or row.epoch == drive.epoch]
        self.recorded = {row.unit for row in kept}
        self._outdated = {row.unit for row in rows} - self.recorded
        self._records, self._bytes = sum(row.records for row in kept), sum(row.bytes for row in kept)
        self._last_contact = time.monotonic()

    def poll(self) -> None:
        """Record what finished since the last call; find out about a successor even when nothing did."""
        for uri in self._storage.list(self._job.results):
            unit = uri.rpartition("/")[2].removesuffix(".json")
            if unit not in self.recorded:
                self._record(unit, uri)
        if time.monotonic() - self._last_contact > HEARTBEAT_SECONDS:
            self._obey()

    def _obey(self) -> None:
        """Do what users asked for meanwhile; asking at all shows whether this attempt is still the one."""
        cancelled = False
        with self._drive.fenced() as transaction:
            for command in transaction.take_commands():
                if command.kind == CANCEL:
                    cancelled = True
                else:
                    transaction.answer_command(
                        command.id, CommandState.REFUSED, {"reason": f"{self._job.phase} knows no {command.kind}"}
                    )
            if cancelled:
                transaction.cancel_recovery()
        self._last_contact = time.monotonic()
        if cancelled:
            raise Cancelled(f"recovery {self._drive.recovery.id} was cancelled by its user")

    def _record(self, unit: str, manifest: str) -> None:
        value = read_json(manifest)
        reach(f"{self._job.phase}.before-record")
        with self._drive.fenced() as transaction:
            record = transaction.redo_unit if unit in self._outdated else transaction.record_unit
            record(self._drive.phase, unit, manifest, value["records"], value["bytes"], value["detail"])
        reach(f"{self._job.phase}.after-record")
        self._last_contact = time.monotonic()
        self.recorded.add(unit)
        self._records += value["records"]
        self._bytes += value["bytes"]
        self.report()

    def report(self) -> None:
        """Tell whoever watches how far we are."""
        progress = Progress(self._job.phase, len(self.recorded), self._total, self._records, self._bytes)
        self._report(progress)


def run_phase(
    repository: Repository,
    recovery_id: str,
    phase: Phase,
    epoch: int,
    settings: Settings,
    workers: Workers,
    report: Report,
) -> Mapping[str, Any]:
    """Run a phase under an epoch that was taken for it. Failures are recorded, unless somebody else took over."""
    drive = Drive(repository, repository.recovery(recovery_id), phase, epoch, settings)
    try:
        _refuse_other_host(drive)
        result = _run(drive, workers, report)
    except Fenced:
        raise
    except Cancelled:
        workers.end(drive)
        raise
    except CdrError as error:
        _record_failure(drive, str(error))
        if not error.retry_helps:
            workers.end(drive)
        raise
    except Exception as error:
        _record_failure(drive, f"{type(error).__name__}: {error}")
        raise JobFailed(f"phase {phase} failed: {type(error).__name__}: {error}") from error
    if phase.successor is None:
        workers.end(drive)
    return result


def stored_result(repository: Repository, recovery_id: str, phase: Phase) -> Mapping[str, Any]:
    """The result of a phase that is done."""
    row = next(row for row in repository.phases(recovery_id) if row.name == phase)
    return dict(row.result or {})


def _run(drive: Drive, workers: Workers, report: Report) -> Mapping[str, Any]:
    workers.start(drive)
    module: Any = importlib.import_module(f"cdr_core.phases.{drive.phase}")
    units: dict[str, Any] = module.prepare(drive)
    job = drive.job()
    write_json(job.units, units)
    with drive.fenced() as transaction:
        transaction.set_total(drive.phase, len(units), None)
    redo = getattr(module, "CHECKS_ANEW", False)
    recorder = Recorder(drive, job, len(units), report, redo)
    recorder.report()
    pending = [unit for unit in units if unit not in recorder.recorded]
    if pending:
        workers.run(drive, job.to_json(), pending, recorder.poll)
        recorder.poll()
    missing = sorted(set(units) - recorder.recorded)
    if missing:
        raise JobFailed(f"phase {drive.phase} ended without a result of unit {missing[0]}")
    finished: Finished = module.finish(drive, drive.results(drive.phase))
    reach(f"{drive.phase}.before-done")
    with drive.fenced() as transaction:
        finished.record(transaction)
        transaction.finish_phase(drive.phase, finished.result)
    reach(f"{drive.phase}.after-done")
    return finished.result


def _refuse_other_host(drive: Drive) -> None:
    """A local workspace exists on one host only; another one would find nothing and must not take that for empty."""
    owner = drive.recovery.host_id
    if owner is not None and owner != host_id():
        raise Refused(
            f"the workspace of recovery {drive.recovery.id} is on another host",
            hint="run it there, or start a recovery to another target here",
        )


def _record_failure(drive: Drive, error: str) -> None:
    """Best effort: the error itself must reach the user even when the database is away."""
    with suppress(CdrError), drive.fenced() as transaction:
        transaction.fail_attempt(error)


def as_line(value: Mapping[str, Any]) -> str:
    """A result as the last line of a driver's output."""
    return json.dumps(value, sort_keys=True)
