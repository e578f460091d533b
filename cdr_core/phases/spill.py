"""spill: gather each new subtask's records into a sealed spill set, in the order in which they will be drained.

Unit: a new subtask. Order: by gate, new channel, virtual channel, split; within a virtual channel the source's own
order. Elements that are not records are selected like them; behind the records of a new channel that several virtual
channels were merged into come its closing elements (:mod:`cdr_core.rescale.other_elements`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing as closed
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from cdr_core.audit.ledger import ChannelKey, Entry, Tally, require_equal, require_others, total
from cdr_core.faults import reach
from cdr_core.metadata import Phase, SpillFile
from cdr_core.phases.filter import entries as selected
from cdr_core.phases.filter import splits
from cdr_core.phases.meter import Meter, unit_of
from cdr_core.phases.read import last_said
from cdr_core.phases.selections import Selections
from cdr_core.phases.unit import Finished, Job, Outcome
from cdr_core.phases.workspace import write_json
from cdr_core.rescale.other_elements import CLOSING_POSITION, CLOSING_PREFIX, Closing, closings, kinds
from cdr_core.rescale.plan import Plan
from cdr_core.spill.gather import Fold, Gatherer
from cdr_core.spill.placement import Place
from cdr_core.spill.room import require_room_for_positions
from cdr_core.spill.shipping import shipping
from cdr_core.spill.tiers import Tier, refuse_beside, tiers_of
from cdr_core.spill.writer import ChannelId, SpillWriter
from cdr_core.storage import join

if TYPE_CHECKING:
    from cdr_core.metadata import FencedTransaction
    from cdr_core.phases.driver import Drive

AFTER_ALL_SPLITS = 1 << 62
"""The split number of closing elements, for the order of parts."""


def prepare(drive: Drive) -> dict[str, Any]:
    """The selection, by new subtask."""
    if drive.recovery.host_id is None:
        refuse_beside(drive.workspace.root, drive.settings.spill_dirs)
    tiers = tiers_of(drive.settings.spill_dirs, drive.workspace.root)
    results = drive.results(Phase.FILTER)
    if drive.phase is Phase.SPILL:  # the drain, too, asks for these units, and seldom needs one
        done = sum(row.records for row in drive.repository.units(drive.recovery.id, Phase.SPILL))
        require_room_for_positions(drive.workspace.root, total(selected(results)).records - done)
    return units(drive.plan, drive.results(Phase.READ), results, tiers, closing_elements(drive))


def closing_elements(drive: Drive) -> list[Closing]:
    """What is written behind the records of merged channels, by what `read` noted."""
    return closings(drive.plan, last_said(drive.results(Phase.READ)))


def finish(drive: Drive, results: Sequence[Mapping[str, Any]]) -> Finished:
    """The sets hold what was selected, in order."""
    ledger = entries(results)
    before = selected(drive.results(Phase.FILTER))
    require_equal("spill", before, ledger)
    require_others("spill", expected_others(drive.plan, before, closing_elements(drive)), ledger)

    def record(transaction: FencedTransaction) -> None:
        transaction.add_ledger(drive.phase, [entry.to_json() for entry in ledger])
        for result in results:
            files = [SpillFile(file["path"], file["bytes"]) for file in result["files"]]
            size = sum(file.bytes for file in files)
            transaction.seal_spill_set(result["subtask"], result["manifest"], drive.recovery.host_id, files, size)

    return Finished({"records": total(ledger).records, "files": sum(len(r["files"]) for r in results)}, record)


def expected_others(
    plan: Plan, before: Sequence[Entry], closing: Sequence[Closing]
) -> dict[ChannelKey, Mapping[str, int]]:
    """What is selected besides records, and the closing elements, by virtual channel and new subtask."""
    expected: dict[ChannelKey, Mapping[str, int]] = {entry.key: entry.others for entry in before}
    for each in closing:
        key = subtask_entry(plan, each.subtask, each.channel, Tally()).key
        expected[key] = {**expected.get(key, {}), **each.others}
    return expected


def units(
    plan: Plan,
    read_results: Sequence[Mapping[str, Any]],
    filter_results: Sequence[Mapping[str, Any]],
    tiers: Sequence[Tier] = (),
    closing: Sequence[Closing] = (),
) -> dict[str, Any]:
    """One unit per new subtask, each with the parts of the selection that it owns, in drain order.

    A part has its split, so that a selection that is lost can be made again. ``tiers`` are where it spills; none = the
    workspace. ``closing`` elements are parts too, without a selection.
    """
    source = {(split["channel"], split["number"]): split for split in splits(read_results)}
    places = [asdict(tier) for tier in tiers]
    parts: dict[int, list[tuple[Any, ...]]] = {number: [] for number in range(len(plan.subtasks))}
    sizes: Counter[int] = Counter()
    for result in filter_results:
        for part in result["parts"]:
            channel = plan.channels[part["channel"]]
            order = (plan.exchanges[channel.exchange].gate, channel.new_up, part["channel"], part["split"])
            definition = {
                "channel": part["channel"],
                "split": source[part["channel"], part["split"]],
                "file": result["file"],
                "range": part["range"],
                "crc32c": part.get("crc32c"),  # the version before recorded none
            }
            if "carried" in part:
                definition["carried"] = [result["carried"], *part["carried"]]
            parts[part["subtask"]].append((*order, definition))
            sizes[part["subtask"]] += part["entry"]["bytes"]
    for each in closing:
        channel = plan.channels[each.channel]
        order = (plan.exchanges[channel.exchange].gate, channel.new_up, each.channel, AFTER_ALL_SPLITS)
        definition = {"channel": each.channel, "closing": each.frames.hex(), "elements": len(each.others)}
        parts[each.subtask].append((*order, definition))
    return {
        f"{subtask:05d}": {
            "subtask": subtask,
            "tiers": places,
            "bytes": sizes[subtask],
            "parts": [part[-1] for part in sorted(owned, key=lambda part: part[:-1])],
        }
        for subtask, owned in parts.items()
    }


def execute(job: Job, plan: Plan, unit: Mapping[str, Any], name: str) -> Outcome:
    """Write the subtask's spill set and seal its manifest."""
    directory, home = job.makes / f"set-{name}", join(job.directory, f"set-{name}")
    tiers = [Tier(**tier) for tier in unit["tiers"]] or tiers_of((), job.root)
    places = [Place.of_attempt(tier, job.recovery, job.epoch, directory.name) for tier in tiers]
    manifest = join(home, "manifest.json")
    lines: dict[int, Entry] = {}
    sizes = job.segment_size, job.spill_file_size
    with (
        shipping(directory, home) as ship,
        SpillWriter(directory, unit["subtask"], *sizes, places, ship) as writer,
        closed(Selections(job, plan, unit["subtask"])) as selections,
    ):
        gatherer = Gatherer(writer, job.segment_size)
        meter = Meter(job, unit_of(name), unit["bytes"])
        for part in unit["parts"]:
            number = part["channel"]
            before = lines.get(number, subtask_entry(plan, unit["subtask"], number, Tally()))
            if "closing" in part:
                lines[number] = _close_channel(plan, part, gatherer, before)
            else:
                lines[number] = _spill_part(plan, part, gatherer, before, selections, meter)
        ledger = tuple(lines.values())
        spill_set = writer.seal(ledger)
        write_json(manifest, spill_set.to_json())
        reach("spill.sealed")
    return Outcome(
        records=sum(entry.tally.records for entry in ledger),
        bytes=sum(file.bytes for file in spill_set.files),
        detail={
            "subtask": unit["subtask"],
            "manifest": manifest,
            "files": [asdict(file) for file in spill_set.files],
            "sizes": {"segment_size": job.segment_size, "spill_file_size": job.spill_file_size},
            "ledger": [entry.to_json() for entry in ledger],
            **({"selected_again": selections.made_again} if selections.made_again else {}),
        },
    )


def _spill_part(
    plan: Plan,
    part: Mapping[str, Any],
    gatherer: Gatherer,
    line: Entry,
    selections: Selections,
    meter: Meter,
) -> Entry:
    """Gather the part's runs; the ledger line with them."""
    source, runs = selections.of(part)
    fold, said = Fold(), Tally()
    for _ in gatherer.add(_place_of(plan, part["channel"]), source, runs, fold):
        tally = fold.tally
        meter.add(tally.records - said.records, tally.bytes - said.bytes)
        said = tally
    return line.then(Entry(line.key, fold.tally, kinds(fold.kinds)))


def _close_channel(plan: Plan, part: Mapping[str, Any], gatherer: Gatherer, line: Entry) -> Entry:
    """Append the closing elements; the ledger line with them."""
    frames_of = np.frombuffer(bytes.fromhex(part["closing"]), np.uint8)
    positions = np.full(part["elements"], CLOSING_POSITION, np.int64)
    fold = Fold()
    gatherer.whole(_place_of(plan, part["channel"]), frames_of, positions, line.key.where, fold)
    closing = {f"{CLOSING_PREFIX}{kind}": count for kind, count in kinds(fold.kinds).items()}
    return line.then(Entry(line.key, fold.tally, closing))


def _place_of(plan: Plan, number: int) -> ChannelId:
    channel = plan.channels[number]
    return number, plan.exchanges[channel.exchange].gate, channel.new_up


def subtask_entry(plan: Plan, subtask: int, number: int, tally: Tally) -> Entry:
    """The ledger line of a virtual channel's records on one new subtask."""
    channel = plan.channels[number]
    exchange = plan.exchanges[channel.exchange]
    return Entry(ChannelKey(exchange.name, channel.up, channel.down, plan.subtasks[subtask].index), tally)


def entries(results: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """The spill ledger."""
    return [Entry.from_json(entry) for result in results for entry in result["ledger"]]


if __name__ == "__main__":
    from cdr_core.phases.main import main

    main("spill")
