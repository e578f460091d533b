"""filter: which new subtask owns each record, as runs of byte ranges.

Unit: splits of virtual channels, of about the plan's split size. A channel with one possible owner passes through
undecoded; of the others every record is read, and its owner found. Elements that are not records follow the rule in
:mod:`cdr_core.channels.control_elements`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import Ledger, join_ledgers, require_others, require_partition
from cdr_core.channels.batch_scan import Scanned
from cdr_core.channels.control_elements import SUMMED_UP, carried_by, line_rules
from cdr_core.channels.grouping import group_ends
from cdr_core.channels.source_index import index_of
from cdr_core.flink.read_page import PageCounts
from cdr_core.phases.read import MOST_CHANNELS
from cdr_core.planning.plan import Plan
from cdr_core.runtime.phase_definition import Finished, Outcome, PhaseDefinition
from cdr_core.runtime.phase_ledgers import channel_key, line_key, recorded, summed_lines
from cdr_core.runtime.phase_outputs import scanned_by, selected_by, source_ledger
from cdr_core.runtime.selection_blocks import (
    batch_selector,
    carrier,
    in_drain_order,
    load_splits,
    referable,
    write_blocks,
)
from cdr_core.runtime.unit_progress import Meter, unit_of
from cdr_core.runtime.unit_results import FilterResult, ReadResult
from cdr_core.runtime.unit_runner import Job
from cdr_core.runtime.units import FilterUnit
from cdr_core.storage import join
from cdr_core.storage.atomic_write import making
from cdr_core.storage.column_codec import write_columns

if TYPE_CHECKING:
    from cdr_core.runtime.driver import PhaseRun

Longs = npt.NDArray[np.int64]


def prepare(run: PhaseRun) -> dict[str, FilterUnit]:
    """The splits that read found."""
    whole = index_of(run.plan.metadata_sha256).is_remote
    found = [
        source
        for file, sha256, scanned in _scanned_files(run)
        for source in split_sources(scanned, file, sha256, run.plan.split_size, whole_channels=whole)
    ]
    return {f"{index:05d}": source for index, source in enumerate(found)}


def _scanned_files(run: PhaseRun) -> Iterator[tuple[str, str, Scanned]]:
    """What each unit of `read` found, and the file that holds it; of an earlier version's units it is written now."""
    for unit in run.outputs(ReadResult):
        if unit.columns:
            yield unit.manifest, unit.result.sha256, Scanned.from_columns(unit.columns, unit.result.special)
        else:
            scanned = Scanned.of_dicts(unit.result.channels).in_order()
            uri = run.workspace.attempt(run.epoch, str(run.phase), f"splits-{unit.unit}.msgpack")
            yield uri, write_columns(uri, scanned.to_columns()), scanned


def split_sources(
    scanned: Scanned, file: str, sha256: str, split_size: int, *, whole_channels: bool = False
) -> list[FilterUnit]:
    """The splits in groups of about ``split_size`` bytes.

    With ``whole_channels`` a channel is not divided between units: on another host each would have to fetch all of it,
    because only its bytes tell where its chunks end.
    """
    sizes = scanned.splits["split_end"] - scanned.splits["split_start"]
    borders = np.arange(len(sizes) + 1)
    if whole_channels and len(sizes):
        channels = scanned.splits["split_channel"]
        borders = np.append(np.append(0, np.flatnonzero(channels[1:] != channels[:-1]) + 1), len(sizes))
        sizes = np.add.reduceat(sizes, borders[:-1])
    ends = borders[group_ends(sizes, split_size, MOST_CHANNELS)].tolist() if len(sizes) else []
    return [FilterUnit(file, sha256, first, end) for first, end in zip([0, *ends[:-1]], ends, strict=False)]


def finish(run: PhaseRun, results: Sequence[FilterResult]) -> Finished:
    """Every record of the source has exactly one owner, and every other element went where its rule says, or the phase
    fails with the channel's name.
    """
    plan, source = run.plan, source_ledger(scanned_by(run))
    ledger, kept, left = selected_by(run)
    require_partition(source, ledger, plan.channels.of_lines, channel_key(plan))
    require_others("filter", "met", source, join_ledgers([kept, left]), channel_key(plan))
    require_others("filter", "wrote", _by_rule(plan, source), ledger, line_key(plan))
    pages = PageCounts()
    for result in results:
        pages = pages.plus(result.page)
    return Finished(
        {
            "records": ledger.records,
            "others": _fates(kept, left, ledger),
            "page": pages.to_json(),
            **recorded(plan, ledger, by_channel=False),
        },
        lambda transaction: transaction.add_ledger(run.phase, summed_lines(plan, ledger, by_channel=False)),
    )


def _by_rule(plan: Plan, source: Ledger) -> Ledger:
    """By line: the other elements that the rule puts there."""
    counts = plan.channels.owner_count[source.other_lines]
    rows = np.repeat(np.arange(len(counts)), counts)
    lanes = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    lines = plan.channels.line_first[source.other_lines[rows]] + lanes
    stays = carried_by(line_rules(plan, lines))[np.arange(len(lines)), source.other_kinds[rows]] > 0
    found = lines[stays], source.other_kinds[rows][stays], source.other_counts[rows][stays]
    return join_ledgers([Ledger(source.lines[:0], source.sums[:0], *found)])


def _fates(kept: Ledger, left: Ledger, ledger: Ledger) -> dict[str, dict[str, int]]:
    """What became of the other elements, in total; written = kept, and replicas of it."""
    gone = left.kinds()
    return {
        "kept": kept.kinds(),
        "merged": {kind: count for kind, count in gone.items() if kind in SUMMED_UP},
        "dropped": {kind: count for kind, count in gone.items() if kind not in SUMMED_UP},
        "written": ledger.kinds(),
    }


def execute(job: Job, plan: Plan, unit: FilterUnit, name: str) -> Outcome[FilterResult]:
    """Select the records of the unit's splits; parts and runs lie in one file, a block per new subtask."""
    splits = load_splits(plan, unit)
    meter = Meter(job, unit_of(name), splits.ledger.bytes)
    with batch_selector(job, plan, meter.add) as (selector, alone):
        selected = in_drain_order(plan, selector.select(splits))
        page = alone.page.counts
    file = join(job.directory, f"selection-{name}.bin")
    with (
        carrier(job, plan, splits, name) as carries,
        making(file, job.makes) as temporary,
        temporary.open("xb") as sink,
    ):
        index = write_blocks(plan, selected, splits.channel[splits.damaged], carries, referable(job, plan), sink)
    ledger = join_ledgers([selected.ledger.moved(selected.line)])
    return Outcome(
        records=ledger.records,
        bytes=ledger.bytes,
        result=FilterResult(page=page, selection=file, splits=unit, carried="" if carries is None else carries.uri),
        columns={
            **ledger.to_columns(),
            **join_ledgers([selected.kept]).to_columns("kept_"),
            **join_ledgers([selected.left]).to_columns("left_"),
            **index,
        },
    )


PHASE = PhaseDefinition(FilterResult, FilterUnit, prepare, execute, finish)

if __name__ == "__main__":
    from cdr_core.runtime.phase_command import main

    main("filter")
