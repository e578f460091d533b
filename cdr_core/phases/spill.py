"""spill: gather each new subtask's records into a sealed spill set, in the order in which they will be drained.

Unit: a new subtask. Order: by stage of the drain order, gate, new channel, virtual channel, split; within a virtual
channel the source's own order. Elements that are not records are selected like them; behind the records of a new
channel that several virtual channels were merged into come its closing elements
(:mod:`cdr_core.channels.control_elements`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import BYTES, join_ledgers, require_equal, require_others
from cdr_core.channels.batch_scan import Scanned
from cdr_core.channels.channel_batch import batch_source
from cdr_core.channels.channel_layout import LayoutReader
from cdr_core.channels.closing_elements import Closings, closings
from cdr_core.channels.grouping import group_ends
from cdr_core.errors import Where
from cdr_core.faults import reach
from cdr_core.metadata import Phase, SpillFile
from cdr_core.phases import filter as filtering
from cdr_core.planning.plan import Plan
from cdr_core.runtime.owned_parts import OwnedParts, Referable
from cdr_core.runtime.phase_ledgers import line_key, recorded, summed_lines
from cdr_core.runtime.phase_outputs import scanned_by, selected_by, spilled_by
from cdr_core.runtime.selection_blocks import BLOCK, Blocks, write_index
from cdr_core.runtime.unit_progress import Meter, unit_of
from cdr_core.runtime.unit_runner import Finished, Job, Outcome
from cdr_core.runtime.workspace import write_json
from cdr_core.spill.remote_upload import shipping
from cdr_core.spill.segment_builder import SegmentBuilder
from cdr_core.spill.set_writer import SetWriter
from cdr_core.spill.tiered_files import Place
from cdr_core.spill.tiers import Tier, refuse_beside, tiers_of
from cdr_core.storage import join, storage_for
from cdr_core.storage.column_codec import read_columns, write_columns

if TYPE_CHECKING:
    from cdr_core.metadata import FencedTransaction
    from cdr_core.runtime.driver import Drive

Longs = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


INDEX, CLOSINGS = "selections.msgpack", "closings.msgpack"
INPUTS = "inputs"
"""In a unit's result: the two files that it read, each with its SHA-256."""

MOST_PARTS = 1 << 16
"""Parts of a segment."""


def prepare(drive: Drive) -> dict[str, Any]:
    """One unit per new subtask; what each of them owns is in the index of the selections."""
    if drive.recovery.host_id is None:
        refuse_beside(drive.workspace.root, drive.settings.spill_dirs)
    return _units(drive, _write_inputs(drive), owned_bytes(drive))


def units_again(drive: Drive) -> dict[str, Any]:
    """The units once more, for sets that get lost while they are drained: by what spill recorded of its inputs."""
    results = drive.results(Phase.SPILL)
    if not all(INPUTS in result for result in results):
        return prepare(drive)  # an earlier version spilled
    sizes = np.zeros(len(drive.plan.subtasks), np.int64)
    for result in results:
        sizes[result["subtask"]] = sum(file["bytes"] for file in result["files"])
    return _units(drive, results[0][INPUTS], sizes)


def _units(drive: Drive, inputs: Sequence[list[str]], sizes: Longs) -> dict[str, Any]:
    tiers = [asdict(tier) for tier in tiers_of(drive.settings.spill_dirs, drive.workspace.root)]
    index, closing = inputs
    return {
        f"{subtask:05d}": {
            "subtask": subtask,
            "tiers": tiers,
            "bytes": int(sizes[subtask]),
            "index": index,
            "closings": closing,
        }
        for subtask in range(len(drive.plan.subtasks))
    }


def owned_bytes(drive: Drive) -> Longs:
    """How many bytes of records each new subtask owns."""
    ledger, sizes = selected_by(drive)[0], np.zeros(len(drive.plan.subtasks), np.int64)
    np.add.at(sizes, drive.plan.channels.subtask_of_lines(ledger.lines), ledger.sums[:, BYTES].astype(np.int64))
    return sizes


def _write_inputs(drive: Drive) -> list[list[str]]:
    """The index of the selections and the closing elements, each as (file, SHA-256)."""
    directory = drive.workspace.attempt(drive.epoch, str(drive.phase))
    uri = join(directory, INDEX)
    data = write_index(uri, lambda: _blocks(drive))
    storage_for(uri).create(uri, data)
    closing = join(directory, CLOSINGS)
    columns = closing_elements(drive.plan, scanned_by(drive)).to_columns()
    return [[uri, hashlib.sha256(data).hexdigest()], [closing, write_columns(closing, columns)]]


def _blocks(drive: Drive) -> Iterator[tuple[Mapping[str, Any], dict[str, Longs]]]:
    units = list(drive.columns(Phase.FILTER))
    if all(unit.columns for unit in units):
        yield from ((unit.detail, {name: unit.columns[name] for name in BLOCK}) for unit in units)
        return
    # An earlier version filtered: every block counts as lost, and is selected again by the task that needs it.
    subtasks = np.arange(len(drive.plan.subtasks))
    for source in filtering.prepare(drive).values():
        nothing = dict.fromkeys(BLOCK, np.zeros(len(subtasks), np.int64))
        yield {"selection": "", "splits": source}, {**nothing, "subtask": subtasks}


def closing_elements(plan: Plan, scanned: Scanned) -> Closings:
    """What is written behind the records of merged channels, by what `read` noted."""
    own = scanned.channels
    return closings(plan, own["watermark"], own["has_watermark"] > 0, own["status"] == -1)


def finish(drive: Drive, results: Sequence[Mapping[str, Any]]) -> Finished:
    """The sets hold what was selected, in order."""
    plan, ledger, before = drive.plan, spilled_by(drive), selected_by(drive)[0]
    require_equal("spill", before, ledger, line_key(plan))
    expected = join_ledgers([before, closing_elements(plan, scanned_by(drive)).ledger])
    require_others("spill", "wrote", expected, ledger, line_key(plan))

    def record(transaction: FencedTransaction) -> None:
        transaction.add_ledger(drive.phase, summed_lines(plan, ledger, by_channel=False))
        for result in results:
            files = [SpillFile(file["path"], file["bytes"]) for file in result["files"]]
            size = sum(file.bytes for file in files)
            transaction.seal_spill_set(result["subtask"], result["manifest"], drive.recovery.host_id, files, size)

    files = sum(len(result["files"]) for result in results)
    facts = {"records": ledger.records, "files": files, **recorded(plan, ledger, by_channel=False)}
    return Finished(facts, record)


def execute(job: Job, plan: Plan, unit: Mapping[str, Any], name: str) -> Outcome:
    """Write the subtask's spill set and seal its manifest."""
    directory, home = job.makes / f"set-{name}", join(job.directory, f"set-{name}")
    tiers = [Tier(**tier) for tier in unit["tiers"]] or tiers_of((), job.root)
    places = [Place.of_attempt(tier, job.recovery, job.epoch, directory.name) for tier in tiers]
    manifest = join(home, "manifest.json")
    blocks = Blocks(job, plan, unit["subtask"], *unit["index"])
    closing = Closings.from_columns(read_columns(*unit["closings"]))
    parts = OwnedParts(plan, unit["subtask"], blocks, closing, job.drain_order, referable(job, plan))
    meter = Meter(job, unit_of(name), unit["bytes"])
    with (
        shipping(directory, home) as ship,
        SetWriter(directory, unit["subtask"], job.spill_file_size, places, ship) as writer,
    ):
        builder = SegmentBuilder(writer, job.segment_size, np.unique(parts.line), _where(plan))
        gather(job, plan, parts, builder, lambda: meter.at(lambda: builder.done))
        ledger = builder.ledger
        spill_set = writer.seal(ledger)
        write_json(manifest, spill_set.to_json())
        reach("spill.sealed")
    return Outcome(
        records=ledger.records,
        bytes=spill_set.bytes,
        detail={
            "subtask": unit["subtask"],
            "manifest": manifest,
            "files": [asdict(file) for file in spill_set.files],
            "by_reference": spill_set.bytes_by_reference,
            "on_disk": spill_set.bytes_on_disk,
            INPUTS: [unit["index"], unit["closings"]],
            **({"selected_again": blocks.made_again} if blocks.made_again else {}),
        },
        columns=ledger.to_columns(),
    )


def _where(plan: Plan) -> Callable[[int], Where]:
    key = line_key(plan)
    return lambda line: key(line).where


def referable(job: Job, plan: Plan) -> Referable:
    """Whether the drain may read so many bytes of a channel where they lie, as one segment."""
    reader = LayoutReader(plan)
    return lambda channel, size: not job.materialise and size <= job.segment_size and reader.lasts(channel)


def gather(job: Job, plan: Plan, parts: OwnedParts, builder: SegmentBuilder, told: Callable[[], None]) -> None:
    """All parts to segments, each of one exchange."""
    source = batch_source(plan, job.phase)
    borders = np.append(np.append(0, np.flatnonzero(np.diff(parts.exchange)) + 1), len(parts))
    for first, last in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        begin = first
        for end in (first + group_ends(parts.size[first:last], job.segment_size, MOST_PARTS)).tolist():
            chunks, group = parts.group(source, begin, end)
            if end - begin == 1 and int(parts.size[begin]) > job.segment_size:
                builder.large(chunks, group, told)
            else:
                builder.together(chunks, group)
            told()
            begin = end


if __name__ == "__main__":
    from cdr_core.runtime.phase_command import main

    main("spill")
