"""read: scan every virtual channel once, sequentially; leave its ledger and record-aligned splits.

Unit: a batch of virtual channels. Framing does not synchronise itself, so a channel is scanned from its start; the
splits found on the way, each with its own tally, let the next phase work on parts of it, and pass parts on that it
need not look at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cdr_core.channels.batch_scan import require_all_bytes, require_every_channel, scan_channels
from cdr_core.channels.channel_batch import batch_source
from cdr_core.channels.channel_scan import WORTH_A_SUM, scan_channel
from cdr_core.channels.channel_source import open_planned
from cdr_core.channels.grouping import group_ends
from cdr_core.channels.handle_checks import refuse_hidden_bytes, refuse_shared_chunks
from cdr_core.channels.remote_state import is_remote, state_files
from cdr_core.channels.source_index import make_index
from cdr_core.evidence.spec_evidence import ExchangeEvidence, gather_evidence, refuse_unproven, relax_key_checks
from cdr_core.faults import reach
from cdr_core.flink.checkpoint import METADATA_FILE, Checkpoint
from cdr_core.metadata import PlannedEnds, PlanSummary
from cdr_core.planning.dropped_records import Ranges, drops_by_channel, parse_drops
from cdr_core.planning.job_spec import parse_spec
from cdr_core.planning.parallelism import parse_parallelism
from cdr_core.planning.plan import Plan, make_plan
from cdr_core.runtime.phase_definition import Finished, Outcome, PhaseDefinition
from cdr_core.runtime.phase_ledgers import recorded, summed_lines
from cdr_core.runtime.phase_outputs import scanned_by, source_ledger
from cdr_core.runtime.quarantine import (
    QUARANTINE,
    directories,
    put_aside,
    quarantined,
    refuse_wrong_spec,
    shows_values,
)
from cdr_core.runtime.unit_progress import Meter, unit_of
from cdr_core.runtime.unit_results import ReadResult
from cdr_core.runtime.unit_runner import Job
from cdr_core.runtime.units import ReadUnit
from cdr_core.storage import is_local, join, storage_for
from cdr_core.storage.local import local_path
from cdr_core.sweep.leftovers import PINS

if TYPE_CHECKING:
    from cdr_core.metadata import Recovery
    from cdr_core.runtime.driver import PhaseRun


MOST_CHANNELS = 1 << 16
"""Channels of a unit, however small they are: a unit's columns stay small, and progress shows."""


def prepare(run: PhaseRun) -> dict[str, ReadUnit]:
    """Make the plan, which every later attempt works by, and pack its channels into units."""
    recovery = run.recovery
    if recovery.plan_uri is None:
        checkpoint = open_planned(recovery.source.uri, recovery.source.metadata_sha256)
        wish = parse_parallelism(recovery.parallelism)
        plan = make_plan(checkpoint, parse_spec(recovery.spec), wish, run.settings.split_size)
        refuse_shared_chunks(checkpoint)
        refuse_hidden_bytes(checkpoint, plan, damage_is_fine=recovery.options.on_corrupt == QUARANTINE)
        evidence = _evidence(recovery, checkpoint, plan, shown=run.settings.show_samples)
        refuse_unproven(evidence, trusted=recovery.settings.trust_key)
        plan = relax_key_checks(plan, evidence)
        metadata = join(recovery.source.uri, METADATA_FILE)
        modified = storage_for(metadata).stat(metadata).modified
        sources = _pin_source(run, checkpoint)
        uri = run.workspace.attempt(run.epoch, "plan.json")
        storage_for(uri).create(uri, plan.to_json().encode())
        reach("read.plan-written")
        with run.fenced() as transaction:
            transaction.save_plan(plan.sha256, uri, summary(plan, evidence, modified.isoformat(), sources))
    drops = drops_by_channel(run.plan, parse_drops(recovery.options.drop_records))
    return with_drops(units(run.plan), drops)


def _pin_source(run: PhaseRun, checkpoint: Checkpoint) -> str:
    """Note every object that holds channel state, and pin those that can be pinned, before a byte of them is read.
    Every attempt reads these very objects.
    """
    metadata = join(run.recovery.source.uri, METADATA_FILE)
    files = [uri for operator in checkpoint.metadata.operators for uri in state_files(checkpoint, operator)]
    uris = [uri for uri in dict.fromkeys((metadata, *files)) if is_local(uri) or is_remote(uri)]
    own = run.workspace.attempt(run.epoch, str(run.phase))
    pins = local_path(join(own, PINS)) if is_local(own) else None
    index = make_index(uris, pins, immutable=run.settings.source_immutable)
    reach("read.pinned")
    uri = join(own, "sources.json")
    storage_for(uri).create(uri, index.encode())
    return uri


def _evidence(recovery: Recovery, checkpoint: Checkpoint, plan: Plan, *, shown: bool) -> tuple[ExchangeEvidence, ...]:
    """As it was gathered when the recovery was created; now, if an older version created it."""
    found = recovery.settings.evidence
    if found is None:
        return gather_evidence(checkpoint, plan, shown=shown)
    return tuple(map(ExchangeEvidence.from_json, found))


def summary(plan: Plan, evidence: Sequence[ExchangeEvidence], modified: str, sources: str) -> PlanSummary:
    """Return what the row of the recovery keeps of a plan."""
    return PlanSummary(
        exchanges=tuple(
            PlannedEnds(e.name, (e.old_up, e.new_up), (e.old_down, e.new_down), e.partitioner) for e in plan.exchanges
        ),
        subtasks=len(plan.subtasks),
        channels=len(plan.channels),
        ambiguous=int(np.count_nonzero(plan.channels.owner_count > 1)),
        bytes=int(plan.channels.bytes.sum()),
        evidence=tuple(each.to_json() for each in evidence),
        source_modified=modified,
        sources=sources,
    )


def finish(run: PhaseRun, _: Sequence[ReadResult]) -> Finished:
    """The source ledger: every channel of the plan exactly once, or something would be lost without a trace."""
    scanned = scanned_by(run)
    require_every_channel(run.plan, scanned)
    require_all_bytes(run.plan, scanned)
    refuse_wrong_spec(run.plan, scanned)
    ledger, aside = source_ledger(scanned), quarantined(scanned)
    return Finished(
        {
            "records": ledger.records,
            "channels": len(run.plan.channels),
            "quarantined": len(aside),
            "quarantine": directories(aside),
            **recorded(run.plan, ledger),
        },
        lambda transaction: transaction.add_ledger(run.phase, summed_lines(run.plan, ledger)),
    )


def units(plan: Plan) -> dict[str, ReadUnit]:
    """Stretches of the plan's channels, of about its split size and at most so many channels."""
    ends = group_ends(plan.channels.bytes, plan.split_size, MOST_CHANNELS)
    begins = [0, *ends[:-1].tolist()] if len(ends) else []
    return {
        f"{index:05d}": ReadUnit(begin, end)
        for index, (begin, end) in enumerate(zip(begins, ends.tolist(), strict=True))
    }


def with_drops(of: Mapping[str, ReadUnit], drops: Mapping[int, Ranges]) -> dict[str, ReadUnit]:
    """The units, each with the positions that are to be left out of its channels."""
    found: dict[str, dict[int, Ranges]] = {name: {} for name in of}
    for number, ranges in drops.items():
        found[next(name for name, unit in of.items() if unit.first <= number < unit.end)][number] = ranges
    return {name: ReadUnit(unit.first, unit.end, found[name]) for name, unit in of.items()}


def execute(job: Job, plan: Plan, unit: ReadUnit, name: str) -> Outcome[ReadResult]:
    """Scan the unit's channels; with ``on_corrupt quarantine`` what is damaged is put aside instead of failing."""
    drops = unit.drops
    numbers = np.arange(unit.first, unit.end)
    meter = Meter(job, unit_of(name), int(plan.channels.bytes[numbers].sum()))
    salvages = job.on_corrupt == QUARANTINE
    # A split of a channel that has one owner can be a segment of the drain, which reads it where it lies.
    in_segments = (plan.channels.owner_count == 1) & (not salvages and job.segment_size >= WORTH_A_SUM)
    longer = numbers[in_segments[numbers] & (plan.channels.bytes[numbers] > job.segment_size)]

    def alone(number: int) -> Mapping[str, Any]:
        if salvages:
            return put_aside(job, plan, number, name, drops.get(number, ()), meter.add)
        most = min(plan.split_size, job.segment_size) if in_segments[number] else plan.split_size
        return scan_channel(plan, number, drops.get(number, ()), meter.add, most)

    scanned = scan_channels(
        plan,
        batch_source(plan, job.phase),
        numbers,
        alone,
        frozenset(drops) | frozenset(longer.tolist()),
        meter.add,
        decodes=salvages,
        shown=shows_values(job.target),
    )
    return Outcome(
        records=scanned.ledger.records,
        bytes=int(scanned.channels["size"].sum()),
        result=ReadResult(special=tuple(scanned.special)),
        columns=scanned.to_columns(),
    )


PHASE = PhaseDefinition(ReadResult, ReadUnit, prepare, execute, finish)

if __name__ == "__main__":
    from cdr_core.runtime.phase_command import main

    main("read")
