"""read: scan every virtual channel once, sequentially; leave its ledger and record-aligned split points.

Unit: a batch of virtual channels. Framing does not synchronise itself, so a channel is scanned from its start; the
split points found on the way let the next phase work on parts of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cdr_core.audit.ledger import ChannelKey, Entry, Tally, total
from cdr_core.errors import Unbalanced
from cdr_core.faults import reach
from cdr_core.flink.elements import OTHER_KINDS
from cdr_core.flink.virtual_channel import ChannelBytes, windows
from cdr_core.kernels import fingerprint
from cdr_core.phases.unit import Finished, Job, Outcome
from cdr_core.rescale.parallelism import parse_parallelism
from cdr_core.rescale.plan import Plan, make_plan
from cdr_core.rescale.source import open_channel, open_planned
from cdr_core.rescale.spec import parse_spec
from cdr_core.storage import storage_for

if TYPE_CHECKING:
    from cdr_core.phases.driver import Drive

WINDOW = 4 * 1024 * 1024
"""Bytes scanned at once: large enough to make a kernel call cheap, small enough to stay in a shared cache."""


def prepare(drive: Drive) -> dict[str, Any]:
    """Make the plan, which every later attempt works by, and pack its channels into units."""
    recovery = drive.recovery
    if recovery.plan_uri is None:
        checkpoint = open_planned(recovery.source.uri, recovery.source.metadata_sha256)
        wish = parse_parallelism(recovery.parallelism)
        plan = make_plan(checkpoint, parse_spec(recovery.spec), wish, drive.settings.split_size)
        uri = drive.workspace.attempt(drive.epoch, "plan.json")
        storage_for(uri).create(uri, plan.to_json().encode())
        reach("read.plan-written")
        with drive.fenced() as transaction:
            transaction.save_plan(plan.sha256, uri, summary(plan))
    return units(drive.plan)


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
    return Finished(
        {"records": total(ledger).records, "channels": len(ledger)},
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


def execute(_job: Job, plan: Plan, unit: Mapping[str, Any], _name: str) -> Outcome:
    """Scan the unit's channels."""
    scanned = [scan_channel(plan, number) for number in unit["channels"]]
    return Outcome(
        records=sum(channel["entry"]["records"] for channel in scanned),
        bytes=sum(channel["size"] for channel in scanned),
        detail={"channels": scanned},
    )


def scan_channel(plan: Plan, number: int) -> dict[str, Any]:
    """Ledger line, size and split points of one virtual channel, by one sequential scan."""
    channel = open_channel(plan, number)
    tally, kinds, splits = _walk(channel, plan.split_size)
    planned = plan.channels[number]
    key = ChannelKey(plan.exchanges[planned.exchange].name, planned.up, planned.down)
    others = {name: int(kinds[tag]) for tag, name in OTHER_KINDS.items() if kinds[tag]}
    return {
        "channel": number,
        "size": channel.size,
        "input_size": channel.input_size,
        "splits": splits,
        "entry": Entry(key, tally, others).to_json(),
    }


def _walk(channel: ChannelBytes, split_size: int) -> tuple[Tally, Any, list[tuple[int, int]]]:
    """Tally of the records, elements by tag, and split points (logical offset, position) beginning with (0, 0)."""
    sums = np.zeros((1, fingerprint.FOLD_COLUMNS), np.uint64)
    kinds = np.zeros(256, np.int64)
    splits = [(0, 0)]
    for window in windows(channel, 0, channel.size, 0, min(WINDOW, split_size)):
        if window.base - splits[-1][0] >= split_size:
            splits.append((window.base, window.position))
        kinds += np.bincount(window.tags, minlength=256)
        lanes = np.where(window.records, 0, -1)
        fingerprint.fold_records(window.data, window.starts, window.ends, lanes, sums)
    return Tally.of_fold(sums[0]), kinds, splits


def entries(results: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """The source ledger: one line per virtual channel."""
    return [Entry.from_json(channel["entry"]) for result in results for channel in result["channels"]]


if __name__ == "__main__":
    from cdr_core.phases.main import main

    main("read")
