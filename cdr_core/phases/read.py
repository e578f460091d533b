"""read: scan every virtual channel once, sequentially; leave its ledger and record-aligned splits.

Unit: a batch of virtual channels. Framing does not synchronise itself, so a channel is scanned from its start; the
splits found on the way, each with its own tally, let the next phase work on parts of it, and pass parts on that it
need not look at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cdr_core.audit.ledger import Entry, total
from cdr_core.errors import Unbalanced
from cdr_core.faults import reach
from cdr_core.flink.checkpoint import METADATA_FILE, Checkpoint
from cdr_core.metadata import TRUST_KEY
from cdr_core.phases.meter import Meter, unit_of
from cdr_core.phases.quarantine import (
    QUARANTINE,
    directories,
    put_aside,
    quarantined,
    refuse_wrong_spec,
    require_all_bytes,
)
from cdr_core.phases.unit import Finished, Job, Outcome
from cdr_core.rescale.crosscheck import refuse_hidden_bytes, refuse_shared_chunks
from cdr_core.rescale.drops import Ranges, drops_by_channel, parse_drops
from cdr_core.rescale.evidence import ExchangeEvidence, gather_evidence, refuse_unproven, without_idle_checks
from cdr_core.rescale.other_elements import Last
from cdr_core.rescale.parallelism import parse_parallelism
from cdr_core.rescale.plan import Plan, make_plan
from cdr_core.rescale.scanning import scan_channel
from cdr_core.rescale.source import open_planned
from cdr_core.rescale.spec import parse_spec
from cdr_core.storage import join, storage_for

if TYPE_CHECKING:
    from cdr_core.metadata import Recovery
    from cdr_core.phases.driver import Drive

DROP_RECORDS = "drop_records"
"""The option of a recovery that names the records to be left out."""

EVIDENCE = "evidence"
"""In a recovery's settings and its plan's summary: what confirms types and keys, one entry per exchange."""

FIRST = "stage"
"""The step before: a source that is not on this host is brought here."""


def prepare(drive: Drive) -> dict[str, Any]:
    """Make the plan, which every later attempt works by, and pack its channels into units."""
    recovery = drive.recovery
    if recovery.plan_uri is None:
        checkpoint = open_planned(recovery.source.uri, recovery.source.metadata_sha256)
        wish = parse_parallelism(recovery.parallelism)
        plan = make_plan(checkpoint, parse_spec(recovery.spec), wish, drive.settings.split_size)
        refuse_shared_chunks(checkpoint)
        refuse_hidden_bytes(checkpoint, plan, damage_is_fine=recovery.options["on_corrupt"] == QUARANTINE)
        evidence = _evidence(recovery, checkpoint, plan, shown=drive.settings.show_samples)
        refuse_unproven(evidence, trusted=bool(recovery.settings.get(TRUST_KEY)))
        plan = without_idle_checks(plan, evidence)
        metadata = join(recovery.source.uri, METADATA_FILE)
        modified = storage_for(metadata).stat(metadata).modified
        uri = drive.workspace.attempt(drive.epoch, "plan.json")
        storage_for(uri).create(uri, plan.to_json().encode())
        reach("read.plan-written")
        with drive.fenced() as transaction:
            shown = {**summary(plan), EVIDENCE: [each.to_json() for each in evidence]}
            transaction.save_plan(plan.sha256, uri, {**shown, "source_modified": modified.isoformat()})
    drops = drops_by_channel(drive.plan, parse_drops(recovery.options.get(DROP_RECORDS, ())))
    return with_drops(units(drive.plan), drops)


def _evidence(recovery: Recovery, checkpoint: Checkpoint, plan: Plan, *, shown: bool) -> tuple[ExchangeEvidence, ...]:
    """As it was gathered when the recovery was created; now, if an older version created it."""
    found = recovery.settings.get(EVIDENCE)
    if found is None:
        return gather_evidence(checkpoint, plan, shown=shown)
    return tuple(map(ExchangeEvidence.from_json, found))


def evidence_of(recovery: Recovery) -> tuple[ExchangeEvidence, ...] | None:
    """What confirmed the types and keys when the plan was made; ``None`` if an older version made it."""
    found = (recovery.plan_summary or {}).get(EVIDENCE)
    return None if found is None else tuple(map(ExchangeEvidence.from_json, found))


def summary(plan: Plan) -> dict[str, Any]:
    """What a person wants to see of a plan first."""
    return {
        "exchanges": [
            {"name": e.name, "up": [e.old_up, e.new_up], "down": [e.old_down, e.new_down], "partitioner": e.partitioner}
            for e in plan.exchanges
        ],
        "subtasks": len(plan.subtasks),
        "channels": len(plan.channels),
        "ambiguous": sum(len(channel.subtasks) > 1 for channel in plan.channels),
        "bytes": sum(channel.bytes for channel in plan.channels),
    }


def finish(drive: Drive, results: Sequence[Mapping[str, Any]]) -> Finished:
    """The source ledger: every channel of the plan exactly once, or something would be lost without a trace."""
    seen = sorted(channel["channel"] for result in results for channel in result["channels"])
    if seen != list(range(len(drive.plan.channels))):
        raise Unbalanced(f"read scanned channels {seen[:10]}… of a plan with {len(drive.plan.channels)}")
    ledger = entries(results)
    aside = quarantined(results)
    require_all_bytes(drive.plan, results)
    refuse_wrong_spec(drive.plan, results)
    return Finished(
        {
            "records": total(ledger).records,
            "channels": len(ledger),
            "quarantined": len(aside),
            "quarantine": directories(aside),
        },
        lambda transaction: transaction.add_ledger(drive.phase, [entry.to_json() for entry in ledger]),
    )


def units(plan: Plan) -> dict[str, Any]:
    """Channels packed into batches of about the plan's split size, in plan order."""
    batches: list[list[int]] = []
    room = 0
    for number, channel in enumerate(plan.channels):
        if not batches or room < channel.bytes:
            batches.append([])
            room = plan.split_size
        batches[-1].append(number)
        room -= channel.bytes
    return {f"{index:05d}": {"channels": batch} for index, batch in enumerate(batches)}


def with_drops(of: Mapping[str, Any], drops: Mapping[int, Ranges]) -> dict[str, Any]:
    """The units, each with the positions that are to be left out of its channels."""
    return {
        name: {**unit, "drops": own} if (own := {str(n): drops[n] for n in unit["channels"] if n in drops}) else unit
        for name, unit in of.items()
    }


def execute(job: Job, plan: Plan, unit: Mapping[str, Any], name: str) -> Outcome:
    """Scan the unit's channels; with ``on_corrupt quarantine`` what is damaged is put aside instead of failing."""
    drops = {int(number): ranges for number, ranges in unit.get("drops", {}).items()}
    meter = Meter(job, unit_of(name), sum(plan.channels[number].bytes for number in unit["channels"]))
    if job.on_corrupt == QUARANTINE:
        scanned = [put_aside(job, plan, number, name, drops.get(number, ()), meter.add) for number in unit["channels"]]
    else:
        scanned = [scan_channel(plan, number, drops.get(number, ()), meter.add) for number in unit["channels"]]
    return Outcome(
        records=sum(channel["entry"]["records"] for channel in scanned),
        bytes=sum(channel["size"] for channel in scanned),
        detail={"channels": scanned},
    )


def last_said(results: Sequence[Mapping[str, Any]]) -> dict[int, Last]:
    """By virtual channel number: the last watermark and status."""
    return {c["channel"]: Last.from_json(c["last"]) for result in results for c in result["channels"]}


def entries(results: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """The source ledger: one line per virtual channel."""
    return [Entry.from_json(channel["entry"]) for result in results for channel in result["channels"]]


if __name__ == "__main__":
    from cdr_core.phases.main import main

    main("read")
