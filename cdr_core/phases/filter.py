"""filter: which new subtask owns each record, as runs of byte ranges.

Unit: a batch of splits of virtual channels. A channel with one possible owner passes through undecoded; of the others
the key of every record is found and hashed. Elements that are not records have no owner: a table holds records only,
so they stay behind and are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdr_core.audit.ledger import ChannelKey, Entry, Tally, require_partition, total
from cdr_core.errors import Where
from cdr_core.flink.decode import BadValue
from cdr_core.flink.keys import key_groups
from cdr_core.flink.types import TypeDescription, parse_type
from cdr_core.flink.virtual_channel import Window, windows
from cdr_core.kernels import fingerprint, frames
from cdr_core.metadata import Phase
from cdr_core.phases.read import WINDOW
from cdr_core.phases.read import entries as read_entries
from cdr_core.phases.unit import Finished, Job, Outcome
from cdr_core.rescale.columns import require_old_owner
from cdr_core.rescale.plan import Plan, PlannedExchange, VirtualChannel
from cdr_core.rescale.source import open_channel
from cdr_core.storage.local import local_path, publish_exclusively, temporary_beside

if TYPE_CHECKING:
    from cdr_core.phases.driver import Drive

RUNS = pa.schema([(name, pa.int64()) for name in ("subtask", "start", "end", "position", "count")])

Longs = npt.NDArray[np.int64]


def prepare(drive: Drive) -> dict[str, Any]:
    """The splits that read found."""
    return units(drive.results(Phase.READ), drive.plan.split_size)


def finish(drive: Drive, results: Sequence[Mapping[str, Any]]) -> Finished:
    """Every record of the source has exactly one owner, or the phase fails with the channel's name."""
    ledger = entries(results)
    require_partition(read_entries(drive.results(Phase.READ)), ledger)
    return Finished(
        {"records": total(ledger).records},
        lambda transaction: transaction.add_ledger(drive.phase, [entry.to_json() for entry in ledger]),
    )


def units(read_results: Sequence[Mapping[str, Any]], split_size: int) -> dict[str, Any]:
    """Splits packed into batches of about ``split_size`` bytes."""
    batches: list[list[dict[str, int]]] = []
    room = 0
    for split in _splits(read_results):
        size = split["end"] - split["start"]
        if not batches or room < size:
            batches.append([])
            room = split_size
        batches[-1].append(split)
        room -= size
    return {f"{index:05d}": {"splits": batch} for index, batch in enumerate(batches)}


def _splits(read_results: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, int]]:
    channels = sorted((c for result in read_results for c in result["channels"]), key=lambda c: int(c["channel"]))
    for channel in channels:
        points = [*channel["splits"], [channel["size"], None]]
        for number, ((start, position), (end, _)) in enumerate(pairwise(points)):
            if start < end:
                yield {
                    "channel": channel["channel"],
                    "number": number,
                    "start": start,
                    "end": end,
                    "position": position,
                }


def execute(job: Job, plan: Plan, unit: Mapping[str, Any], name: str) -> Outcome:
    """Select the records of the unit's splits; the runs lie in one file, addressed by parts."""
    file = local_path(job.directory) / f"selection-{name}.arrow"
    file.parent.mkdir(parents=True, exist_ok=True)
    parts: list[dict[str, Any]] = []
    with temporary_beside(file) as temporary:
        _write_selection(temporary, plan, unit, parts)
        publish_exclusively(temporary, file)
    return Outcome(
        records=sum(part["entry"]["records"] for part in parts),
        bytes=sum(part["entry"]["bytes"] for part in parts),
        detail={"file": str(file), "parts": parts},
    )


def _write_selection(path: Path, plan: Plan, unit: Mapping[str, Any], parts: list[dict[str, Any]]) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, RUNS) as writer:
        for split in unit["splits"]:
            runs, sums = _select(plan, split)
            for lane, subtask in enumerate(plan.channels[split["channel"]].subtasks):
                mine = {name: column[runs["subtask"] == lane] for name, column in runs.items()}
                writer.write_batch(pa.record_batch([pa.array(mine[name]) for name in RUNS.names], schema=RUNS))
                parts.append(_part(plan, split, lane, subtask, Tally.of_fold(sums[lane])))


def _part(plan: Plan, split: Mapping[str, int], lane: int, subtask: int, tally: Tally) -> dict[str, Any]:
    """A part is one record batch of the selection file: the runs of one split that one new subtask owns."""
    channel = plan.channels[split["channel"]]
    key = ChannelKey(plan.exchanges[channel.exchange].name, channel.up, channel.down, plan.subtasks[subtask].index)
    return {
        "channel": split["channel"],
        "split": split["number"],
        "subtask": subtask,
        "entry": Entry(key, tally).to_json(),
    }


def _select(plan: Plan, split: Mapping[str, int]) -> tuple[dict[str, Longs], npt.NDArray[np.uint64]]:
    """Runs of a split (``subtask`` = lane within the channel's owners) and a fold per lane."""
    planned = plan.channels[split["channel"]]
    exchange = plan.exchanges[planned.exchange]
    description = parse_type(exchange.record)
    sums = np.zeros((len(planned.subtasks), fingerprint.FOLD_COLUMNS), np.uint64)
    collected: list[list[Longs]] = []
    channel = open_channel(plan, split["channel"])
    for window in windows(channel, split["start"], split["end"], split["position"], WINDOW):
        lanes = _lanes(plan, planned, exchange, description, window)
        fingerprint.fold_records(window.data, window.starts, window.ends, lanes, sums)
        columns = [np.empty(len(lanes), np.int64) for _ in RUNS.names]
        count = frames.select_runs(window.starts, window.ends, lanes, window.base, window.position, *columns)
        collected.append([column[:count] for column in columns])
    merged = [np.concatenate(column) for column in zip(*collected, strict=True)]
    return dict(zip(RUNS.names, merged, strict=True)), sums


def _lanes(
    plan: Plan, planned: VirtualChannel, exchange: PlannedExchange, description: TypeDescription, window: Window
) -> Longs:
    """Per element its owner as an index into the channel's owners; −1 for what is not a record."""
    records = window.records
    lanes = np.where(records, 0, -1).astype(np.int64)
    if len(planned.subtasks) == 1:
        return lanes
    times, values = np.empty(len(lanes), np.int64), np.empty(len(lanes), np.int64)
    frames.element_times(window.data, window.starts, window.tags, times, values)
    where = Where(plan.checkpoint, exchange.name, None, planned.down, exchange.gate, planned.up)
    try:
        groups = key_groups(
            description, exchange.key, window.data, values[records], window.ends[records], exchange.max_parallelism
        )
    except BadValue as error:
        start = int(window.starts[records][error.record]) - frames.LENGTH_BYTES
        raise error.at(replace(where, offset=window.base + start)) from None
    require_old_owner(exchange, groups, where)
    owners = groups.astype(np.int64) * exchange.new_down // exchange.max_parallelism
    lanes[records] = owners - plan.subtasks[planned.subtasks[0]].index
    return lanes


def entries(results: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """The selection ledger: one line per (virtual channel, new subtask), its splits joined in order."""
    parts = sorted(
        (part for result in results for part in result["parts"]),
        key=lambda part: (int(part["channel"]), int(part["subtask"]), int(part["split"])),
    )
    joined: dict[ChannelKey, Tally] = {}
    for part in parts:
        entry = Entry.from_json(part["entry"])
        joined[entry.key] = joined.get(entry.key, Tally()).then(entry.tally)
    return [Entry(key, tally) for key, tally in joined.items()]


if __name__ == "__main__":
    from cdr_core.phases.main import main

    main("filter")
