"""spill: gather each new subtask's records into a sealed spill set, in the order in which they will be drained.

Unit: a new subtask. Order: by gate, new channel, virtual channel, split; within a virtual channel the source's own
order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdr_core.audit.ledger import ChannelKey, Entry, Tally, require_equal, total
from cdr_core.errors import Unbalanced
from cdr_core.faults import reach
from cdr_core.flink.virtual_channel import ChannelBytes
from cdr_core.kernels import fingerprint, frames
from cdr_core.metadata import Phase, SpillFile
from cdr_core.phases.filter import entries as selected
from cdr_core.phases.unit import Finished, Job, Outcome
from cdr_core.phases.workspace import write_json
from cdr_core.rescale.plan import Plan
from cdr_core.rescale.source import open_channel
from cdr_core.spill.writer import SpillWriter
from cdr_core.storage.local import local_path

if TYPE_CHECKING:
    from cdr_core.metadata import FencedTransaction
    from cdr_core.phases.driver import Drive

Longs = npt.NDArray[np.int64]


def prepare(drive: Drive) -> dict[str, Any]:
    """The selection, by new subtask."""
    return units(drive.plan, drive.results(Phase.FILTER))


def finish(drive: Drive, results: Sequence[Mapping[str, Any]]) -> Finished:
    """The sets hold what was selected, in order."""
    ledger = entries(results)
    require_equal("spill", selected(drive.results(Phase.FILTER)), ledger)

    def record(transaction: FencedTransaction) -> None:
        transaction.add_ledger(drive.phase, [entry.to_json() for entry in ledger])
        for result in results:
            files = [SpillFile(file["path"], file["bytes"]) for file in result["files"]]
            size = sum(file.bytes for file in files)
            transaction.seal_spill_set(result["subtask"], result["manifest"], drive.recovery.host_id, files, size)

    return Finished({"records": total(ledger).records, "files": sum(len(r["files"]) for r in results)}, record)


def units(plan: Plan, filter_results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One unit per new subtask, each with the parts of the selection that it owns, in drain order."""
    parts: dict[int, list[tuple[Any, ...]]] = {number: [] for number in range(len(plan.subtasks))}
    for result in filter_results:
        for batch, part in enumerate(result["parts"]):
            channel = plan.channels[part["channel"]]
            order = (plan.exchanges[channel.exchange].gate, channel.new_up, part["channel"], part["split"])
            parts[part["subtask"]].append((*order, result["file"], batch))
    return {
        f"{subtask:05d}": {
            "subtask": subtask,
            "parts": [{"channel": p[2], "file": p[4], "batch": p[5]} for p in sorted(owned)],
        }
        for subtask, owned in parts.items()
    }


def execute(job: Job, plan: Plan, unit: Mapping[str, Any], name: str) -> Outcome:
    """Write the subtask's spill set and seal its manifest."""
    directory = local_path(job.directory) / f"set-{name}"
    tallies: dict[int, Tally] = {}
    with SpillWriter(directory, unit["subtask"], job.segment_size, job.spill_file_size) as writer:
        for part in unit["parts"]:
            tally = _spill_part(plan, part, writer, job.segment_size)
            tallies[part["channel"]] = tallies.get(part["channel"], Tally()).then(tally)
        ledger = tuple(subtask_entry(plan, unit["subtask"], number, tally) for number, tally in tallies.items())
        spill_set = writer.seal(ledger)
    manifest = str(directory / "manifest.json")
    write_json(manifest, spill_set.to_json())
    reach("spill.sealed")
    return Outcome(
        records=sum(tally.records for tally in tallies.values()),
        bytes=sum(file.bytes for file in spill_set.files),
        detail={
            "subtask": unit["subtask"],
            "manifest": manifest,
            "files": [asdict(file) for file in spill_set.files],
            "ledger": [entry.to_json() for entry in ledger],
        },
    )


def _spill_part(plan: Plan, part: Mapping[str, Any], writer: SpillWriter, window: int) -> Tally:
    channel = plan.channels[part["channel"]]
    gate = plan.exchanges[channel.exchange].gate
    source = open_channel(plan, part["channel"])
    with pa.memory_map(part["file"]) as mapped:
        batch = pa.ipc.open_file(mapped).get_batch(part["batch"])
        runs = [batch.column(name).to_numpy() for name in ("start", "end", "position", "count")]
        tally = Tally()
        for data, base, (start, end, position, count) in _stretches(source, runs, window):
            positions = np.empty(int(count.sum()), np.int64)
            frames.expand_positions(position, count, positions)
            added = writer.append(part["channel"], gate, channel.new_up, data, base, start, end, positions)
            tally = tally.then(_tally(added, len(positions)))
    return tally


def _stretches(
    source: ChannelBytes, runs: list[Longs], window: int
) -> Iterator[tuple[npt.NDArray[np.uint8], int, list[Longs]]]:
    """Neighbouring runs that span at most ``window`` bytes (or one longer run), with the source bytes under them."""
    starts, ends = runs[0], runs[1]
    first = 0
    while first < len(starts):
        base = int(starts[first])
        last = max(first + 1, int(np.searchsorted(ends, base + window, side="right")))
        data = np.empty(int(ends[last - 1]) - base, np.uint8)
        source.copy(base, int(ends[last - 1]), data)
        yield data, base, [column[first:last] for column in runs]
        first = last


def _tally(body: npt.NDArray[np.uint8], records: int) -> Tally:
    starts, ends = np.empty(records, np.int64), np.empty(records, np.int64)
    tags = np.empty(records, np.int8)
    found, used, _ = frames.scan_frames(body, len(body), starts, ends, tags, len(body))
    if (found, used) != (records, len(body)):
        raise Unbalanced(f"spill gathered {found} records where {records} were selected")
    sums = np.zeros((1, fingerprint.FOLD_COLUMNS), np.uint64)
    fingerprint.fold_records(body, starts, ends, np.zeros(records, np.int64), sums)
    return Tally.of_fold(sums[0])


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
