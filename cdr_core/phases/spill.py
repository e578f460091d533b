"""spill: gather each new subtask's records into a sealed spill set, in the order in which they will be drained.

Unit: a new subtask. Order: by stage of the drain order, gate, new channel, virtual channel, split; within a virtual
channel the source's own order. Elements that are not records are selected like them; behind the records of a new
channel that several virtual channels were merged into come its closing elements
(:mod:`cdr_core.channels.control_elements`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import BYTES, join_ledgers, require_equal, require_others
from cdr_core.channels.batch_scan import Scanned
from cdr_core.channels.channel_batch import batch_source
from cdr_core.channels.closing_elements import Closings, closings
from cdr_core.channels.grouping import group_ends
from cdr_core.errors import Where
from cdr_core.faults import reach
from cdr_core.metadata import SpillFile
from cdr_core.phases import filter as filtering
from cdr_core.planning.plan import Plan
from cdr_core.runtime.owned_parts import OwnedParts
from cdr_core.runtime.phase_definition import Finished, Outcome, PhaseDefinition
from cdr_core.runtime.phase_ledgers import line_key, recorded, summed_lines
from cdr_core.runtime.phase_outputs import scanned_by, selected_by, spilled_by
from cdr_core.runtime.selection_blocks import BLOCK, STORED, Blocks, SelectionFile, referable, write_index
from cdr_core.runtime.unit_progress import Meter, unit_of
from cdr_core.runtime.unit_results import FilterResult, SpillResult
from cdr_core.runtime.unit_runner import Job
from cdr_core.runtime.units import SpillUnit, StoredColumns
from cdr_core.runtime.workspace import write_json
from cdr_core.spill.capacity_check import refuse_unfit
from cdr_core.spill.remote_upload import shipping
from cdr_core.spill.segment_builder import SegmentBuilder
from cdr_core.spill.set_writer import SetWriter
from cdr_core.spill.tiered_files import Place
from cdr_core.spill.tiers import refuse_beside, tiers_of
from cdr_core.storage import join, storage_for
from cdr_core.storage.column_codec import write_columns

if TYPE_CHECKING:
    from cdr_core.metadata import FencedTransaction
    from cdr_core.runtime.driver import PhaseRun

Longs = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


INDEX, CLOSINGS = "selections.msgpack", "closings.msgpack"
MOST_PARTS = 1 << 16
"""Parts of a segment."""


def prepare(run: PhaseRun) -> dict[str, SpillUnit]:
    """One unit per new subtask; what each of them owns is in the index of the selections."""
    if run.recovery.host_id is None:
        refuse_beside(run.workspace.root, run.settings.spill_dirs)
    _refuse_small_tiers(run)
    return _units(run, _write_inputs(run), owned_bytes(run))


def _refuse_small_tiers(run: PhaseRun) -> None:
    """Refuse tiers without room for what is now known to be stored, before anything is. Sets that an earlier attempt
    sealed stay, and need no more room.
    """
    settings, stored = run.settings, np.zeros(len(run.plan.subtasks), np.int64)
    for unit in run.outputs(FilterResult):
        if STORED in unit.columns:  # earlier versions did not note it
            np.add.at(stored, unit.columns["subtask"], unit.columns[STORED])
    stored[[result.subtask for result in run.results(SpillResult)]] = 0
    sizes = int(stored.sum()), settings.segment_size, settings.memory_budget
    refuse_unfit(settings.spill_dirs, settings.workspace, *sizes, own={run.recovery.id})


def units_again(run: PhaseRun) -> dict[str, SpillUnit]:
    """The units once more, for sets that get lost while they are drained: by what spill recorded of its inputs."""
    results = run.results(SpillResult)
    inputs = results[0].inputs if results else None
    if inputs is None or not all(result.inputs for result in results):
        return prepare(run)  # an earlier version spilled
    sizes = np.zeros(len(run.plan.subtasks), np.int64)
    for result in results:
        sizes[result.subtask] = sum(file.bytes for file in result.files)
    return _units(run, inputs, sizes)


def _units(run: PhaseRun, inputs: tuple[StoredColumns, StoredColumns], sizes: Longs) -> dict[str, SpillUnit]:
    tiers = tuple(tiers_of(run.settings.spill_dirs, run.workspace.root))
    return {
        f"{subtask:05d}": SpillUnit(subtask, tiers, int(sizes[subtask]), *inputs)
        for subtask in range(len(run.plan.subtasks))
    }


def owned_bytes(run: PhaseRun) -> Longs:
    """How many bytes of records each new subtask owns."""
    ledger, sizes = selected_by(run)[0], np.zeros(len(run.plan.subtasks), np.int64)
    np.add.at(sizes, run.plan.channels.subtask_of_lines(ledger.lines), ledger.sums[:, BYTES].astype(np.int64))
    return sizes


def _write_inputs(run: PhaseRun) -> tuple[StoredColumns, StoredColumns]:
    """The index of the selections, and the closing elements."""
    directory = run.workspace.attempt(run.epoch, str(run.phase))
    uri = join(directory, INDEX)
    data = write_index(_blocks(run))
    storage_for(uri).create(uri, data)
    closing = join(directory, CLOSINGS)
    columns = closing_elements(run.plan, scanned_by(run)).to_columns()
    return (
        StoredColumns(uri, hashlib.sha256(data).hexdigest()),
        StoredColumns(closing, write_columns(closing, columns)),
    )


def _blocks(run: PhaseRun) -> Iterator[tuple[SelectionFile, dict[str, Longs]]]:
    units = list(run.outputs(FilterResult))
    if all(unit.columns for unit in units):
        for unit in units:
            assert unit.result.splits is not None, "results with columns have them"
            file = SelectionFile(unit.result.splits, unit.result.selection, unit.result.carried)
            yield file, {name: unit.columns[name] for name in BLOCK}
        return
    # An earlier version filtered: every block counts as lost, and is selected again by the task that needs it.
    subtasks = np.arange(len(run.plan.subtasks))
    for source in filtering.prepare(run).values():
        nothing = dict.fromkeys(BLOCK, np.zeros(len(subtasks), np.int64))
        yield SelectionFile(source), {**nothing, "subtask": subtasks}


def closing_elements(plan: Plan, scanned: Scanned) -> Closings:
    """What is written behind the records of merged channels, by what `read` noted."""
    own = scanned.channels
    return closings(plan, own["watermark"], own["has_watermark"] > 0, own["status"] == -1)


def finish(run: PhaseRun, results: Sequence[SpillResult]) -> Finished:
    """The sets hold what was selected, in order."""
    plan, ledger, before = run.plan, spilled_by(run), selected_by(run)[0]
    require_equal("spill", before, ledger, line_key(plan))
    expected = join_ledgers([before, closing_elements(plan, scanned_by(run)).ledger])
    require_others("spill", "wrote", expected, ledger, line_key(plan))

    def record(transaction: FencedTransaction) -> None:
        transaction.add_ledger(run.phase, summed_lines(plan, ledger, by_channel=False))
        for result in results:
            files = [SpillFile(file.path, file.bytes) for file in result.files]
            size = sum(file.bytes for file in files)
            transaction.seal_spill_set(result.subtask, result.manifest, run.recovery.host_id, files, size)

    files = sum(len(result.files) for result in results)
    facts = {"records": ledger.records, "files": files, **recorded(plan, ledger, by_channel=False)}
    return Finished(facts, record)


def execute(job: Job, plan: Plan, unit: SpillUnit, name: str) -> Outcome[SpillResult]:
    """Write the subtask's spill set and seal its manifest."""
    directory, home = job.makes / f"set-{name}", join(job.directory, f"set-{name}")
    tiers = unit.tiers or tiers_of((), job.root)
    places = [Place.of_attempt(tier, job.recovery, job.epoch, directory.name) for tier in tiers]
    manifest = join(home, "manifest.json")
    blocks = Blocks(job, plan, unit.subtask, unit.index)
    closing = Closings.from_columns(unit.closings.read())
    parts = OwnedParts(plan, unit.subtask, blocks, closing, job.drain_order, referable(job, plan))
    meter = Meter(job, unit_of(name), unit.bytes)
    with (
        shipping(directory, home) as ship,
        SetWriter(directory, unit.subtask, job.spill_file_size, places, ship) as writer,
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
        result=SpillResult(
            subtask=unit.subtask,
            manifest=manifest,
            files=tuple(spill_set.files),
            by_reference=spill_set.bytes_by_reference,
            on_disk=spill_set.bytes_on_disk,
            inputs=(unit.index, unit.closings),
            selected_again=blocks.made_again,
        ),
        columns=ledger.to_columns(),
    )


def _where(plan: Plan) -> Callable[[int], Where]:
    key = line_key(plan)
    return lambda line: key(line).where


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


PHASE = PhaseDefinition(SpillResult, SpillUnit, prepare, execute, finish)

if __name__ == "__main__":
    from cdr_core.runtime.phase_command import main

    main("spill")
