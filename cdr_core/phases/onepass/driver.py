"""The driver's side of one pass: one attempt, one job, and then the four phases that it stands for, one after another.

The units are recorded under `read`, each with all that it left. From these rows alone the units, ledgers and results of
`filter`, `spill` and `drain` follow, and each phase is finished by the very checks of the five phases. A driver that
dies between two of them is followed by one that goes on with the next: no unit is done twice for it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from cdr_core.audit.ledger import require_equal, require_others, total
from cdr_core.commit.sinks import sink_for
from cdr_core.drain.rows import table_schema
from cdr_core.errors import CdrError
from cdr_core.faults import reach
from cdr_core.metadata import FencedTransaction, Phase, Repository
from cdr_core.phases import drain, read, spill, stage
from cdr_core.phases import filter as filtering
from cdr_core.phases.driver import Drive, Recorder, Report, do_units, run_attempt, stored_result, sweep_before
from cdr_core.phases.main import own_runner
from cdr_core.phases.onepass import NAME
from cdr_core.phases.onepass.mode import COUNTERS, Way, refuse_mixing, refuse_without_tiers, spills
from cdr_core.phases.unit import Finished, step_of
from cdr_core.phases.workers import Workers
from cdr_core.rescale.plan import Plan
from cdr_core.settings import Settings
from cdr_core.spill.release import delete_file
from cdr_core.spill.tiers import tiers_of
from cdr_core.storage.local import local_path

PASSED = (Phase.READ, Phase.FILTER, Phase.SPILL, Phase.DRAIN)
"""What one pass stands for; `commit` comes after it as ever."""


def run_one_pass(
    repository: Repository, recovery_id: str, settings: Settings, workers: Workers, report: Report
) -> Mapping[str, Any]:
    """Everything up to `commit`, in one attempt; the stored counters when it is done already."""
    refuse_mixing(repository, recovery_id, Way.ONE_PASS)
    for phase in PASSED:
        attempt = repository.begin_attempt(recovery_id, phase, own_runner(NAME))
        if attempt is not None:
            drive = Drive(repository, repository.recovery(recovery_id), phase, attempt.epoch, settings)
            run_attempt(drive, workers, partial(_run, drive, workers, report))
            break
    return counters(repository, recovery_id)


def counters(repository: Repository, recovery_id: str) -> Mapping[str, Any]:
    """How the bytes of a finished pass went; empty for five phases."""
    return dict(stored_result(repository, recovery_id, Phase.SPILL).get(COUNTERS, {}))


def _run(drive: Drive, workers: Workers, report: Report) -> Mapping[str, Any]:
    result: Mapping[str, Any] = {}
    staged: Mapping[str, Any] = {}
    if drive.phase is Phase.READ:
        staged = _pass(drive, workers, report)
    for phase in PASSED[PASSED.index(drive.phase) :]:
        result = _finish(Drive(drive.repository, drive.recovery, phase, drive.epoch, drive.settings), staged)
        staged = {}
    with suppress(CdrError, OSError):
        _remove_spill(drive)
    return result


def _pass(drive: Drive, workers: Workers, report: Report) -> Mapping[str, Any]:
    """The job itself; before it, a source that is not on this host is brought here, so that each byte comes once."""
    refuse_without_tiers(drive.settings)
    workers.start(drive)
    sweep_before(drive)
    read.prepare(drive)
    sink_for(drive.recovery.target).create(table_schema(drive.plan, raw=drive.keeps_raw))
    first, units = stage.prepare(drive), _units(drive.plan, drive.settings, drive.workspace.root)
    sizes = sum(channel.bytes * len(channel.subtasks) for channel in drive.plan.channels)
    expected = len(first) + len(units), sizes + stage.expected_bytes(first)
    with drive.fenced() as transaction:
        transaction.set_total(drive.phase, *expected)
    staged: Mapping[str, Any] = {}
    if first:
        job = drive.job(step=read.FIRST)
        do_units(drive, workers, Recorder(drive, job, expected, report, redo=False), job, first)
        staged = stage.finish(drive, first, drive.results(drive.phase, read.FIRST))
    job = replace(drive.job(staged=staged.get("staged", "")), phase=NAME)
    do_units(drive, workers, Recorder(drive, job, expected, report, redo=False), job, units)
    return staged


def _units(plan: Plan, settings: Settings, root: str) -> dict[str, Any]:
    """One per new subtask, also one that nothing may come to."""
    tiers = [asdict(tier) for tier in tiers_of(settings.spill_dirs, root)]
    return {
        f"{subtask:05d}": {"subtask": subtask, "spills": spills(settings), "tiers": tiers}
        for subtask in range(len(plan.subtasks))
    }


def _finish(drive: Drive, staged: Mapping[str, Any]) -> Mapping[str, Any]:
    """Make the phase DONE: its units from what the pass left, its ledger by its own checks."""
    if drive.phase is not Phase.READ:
        _record_units(drive)
    finished = _FINISH[drive.phase](drive)
    result = {**finished.result, **staged}
    following = drive.phase.successor if drive.phase is not Phase.DRAIN else None
    reach(f"onepass.{drive.phase}.before-done")
    with drive.fenced() as transaction:
        finished.record(transaction)
        transaction.finish_phase(drive.phase, result, then=following)
    reach(f"onepass.{drive.phase}.after-done")
    with suppress(CdrError, OSError):
        finished.clean_up()
    return result


def _record_units(drive: Drive) -> None:
    """The phase's own rows, all in one transaction: they say nothing that is not in the rows of `read`."""
    rows = [row for row in drive.repository.units(drive.recovery.id, Phase.READ) if not step_of(row.unit)]
    with drive.fenced() as transaction:
        transaction.set_total(drive.phase, len(rows), None)
        for row in rows:
            detail = row.result[str(drive.phase)]
            size = sum(line["bytes"] for line in row.result["drain"]["ledger"])
            transaction.record_unit(drive.phase, row.unit, row.manifest, row.records, size, detail)


def _finish_read(drive: Drive) -> Finished:
    """In the order of the channels, as the five phases have it: here each lies with its first possible owner."""
    channels = [channel for result in drive.results(Phase.READ) for channel in result["channels"]]
    return read.finish(drive, [{"channels": sorted(channels, key=lambda channel: int(channel["channel"]))}])


def _finish_filter(drive: Drive) -> Finished:
    return filtering.finish(drive, drive.results(Phase.FILTER))


def _finish_spill(drive: Drive) -> Finished:
    """What was handed to the router is what was selected. No set is left: what was on disk has been delivered."""
    ledger = spill.entries(drive.results(Phase.SPILL))
    before = filtering.entries(drive.results(Phase.FILTER))
    require_equal("spill", before, ledger)
    require_others("spill", spill.expected_others(drive.plan, before, spill.closing_elements(drive)), ledger)
    counted = _summed([result[COUNTERS] for result in drive.results(Phase.READ)])

    def record(transaction: FencedTransaction) -> None:
        transaction.add_ledger(drive.phase, [entry.to_json() for entry in ledger])

    result = {"records": total(ledger).records, "files": counted["spill_files"], COUNTERS: counted}
    return Finished(result, record)


def _finish_drain(drive: Drive) -> Finished:
    return drain.finish(drive, drive.results(Phase.DRAIN))


_FINISH: Mapping[Phase, Callable[[Drive], Finished]] = {
    Phase.READ: _finish_read,
    Phase.FILTER: _finish_filter,
    Phase.SPILL: _finish_spill,
    Phase.DRAIN: _finish_drain,
}


def _summed(each: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The counters of all units together; the most pages in use are those of one queue."""
    counts: Counter[str] = Counter()
    for unit in each:
        counts.update({name: value for name, value in unit.items() if isinstance(value, int)})
    summed = {name: counts[name] for name in sorted(counts)}
    return {**summed, "most_pages": max((unit["most_pages"] for unit in each), default=0)}


def _remove_spill(drive: Drive) -> None:
    """What tasks of this attempt left that were killed; those that ended removed their own."""
    tiers = tiers_of(drive.settings.spill_dirs, drive.workspace.root)
    places = [tier.attempt(drive.recovery.id, drive.epoch, "spill") for tier in tiers]
    places += local_path(drive.workspace.attempt(drive.epoch, NAME)).glob("set-*")
    for place in places:
        for parent, _, names in os.walk(place, topdown=False):
            for name in names:
                delete_file(str(Path(parent, name)), drive.recovery.id)
            with suppress(OSError):
                Path(parent).rmdir()
