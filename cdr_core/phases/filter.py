"""filter: which new subtask owns each record, as runs of byte ranges.

Unit: a batch of splits of virtual channels. A channel with one possible owner passes through undecoded; of the others
every record is read through the unit's one read page, and its owner found. Elements that are not records follow the
rule in :mod:`cdr_core.rescale.other_elements`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import google_crc32c
import pyarrow as pa

from cdr_core.audit.ledger import ChannelKey, Entry, require_accounted, require_others, require_partition, total
from cdr_core.flink.read_page import PageCounts
from cdr_core.flink.virtual_channel import ChannelBytes
from cdr_core.metadata import Phase
from cdr_core.phases.meter import Meter, unit_of
from cdr_core.phases.read import entries as read_entries
from cdr_core.phases.unit import Finished, Job, Outcome
from cdr_core.rescale.carried import Longs, bytes_of_runs
from cdr_core.rescale.filter_context import FilterContext
from cdr_core.rescale.other_elements import rules, written
from cdr_core.rescale.plan import Plan
from cdr_core.rescale.salvage import open_again
from cdr_core.rescale.selection import RUN_COLUMNS, Selector
from cdr_core.storage import is_local, join
from cdr_core.storage.making import making

if TYPE_CHECKING:
    from cdr_core.phases.driver import Drive

RUNS = pa.schema([(name, pa.int64()) for name in RUN_COLUMNS[1:]])


def prepare(drive: Drive) -> dict[str, Any]:
    """The splits that read found."""
    whole = not is_local(drive.workspace.root)
    return units(drive.results(Phase.READ), drive.plan.split_size, whole_channels=whole)


def finish(drive: Drive, results: Sequence[Mapping[str, Any]]) -> Finished:
    """Every record of the source has exactly one owner, and every other element went where its rule says, or the phase
    fails with the channel's name.
    """
    ledger = entries(results)
    source = read_entries(drive.results(Phase.READ))
    require_partition(source, ledger)
    require_accounted("filter", source, _accounts(drive.plan, results))
    require_others("filter", _by_rule(drive.plan, source), ledger)
    pages = PageCounts()
    for result in results:
        pages = pages.plus(PageCounts.from_json(result["page"]))
    return Finished(
        {"records": total(ledger).records, "others": _others(results, ledger), "page": pages.to_json()},
        lambda transaction: transaction.add_ledger(drive.phase, [entry.to_json() for entry in ledger]),
    )


def _accounts(plan: Plan, results: Sequence[Mapping[str, Any]]) -> dict[ChannelKey, Counter[str]]:
    """By virtual channel: its other elements as the filter met them, each once, by kind."""
    found: dict[ChannelKey, Counter[str]] = {}
    for result in results:
        for line in result["accounts"]:
            counts = found.setdefault(_key(plan, line["channel"]), Counter())
            for name in ("kept", "merged", "dropped"):
                counts.update(line[name])
    return found


def _by_rule(plan: Plan, source: Sequence[Entry]) -> dict[ChannelKey, Mapping[str, int]]:
    """By virtual channel and new subtask: the other elements that the rule puts there."""
    others = {entry.key: entry.others for entry in source}
    return {
        _key(plan, number, subtask): written(others.get(_key(plan, number), {}), rule)
        for number, channel in enumerate(plan.channels)
        for subtask, rule in zip(channel.subtasks, rules(plan, number), strict=True)
    }


def _others(results: Sequence[Mapping[str, Any]], ledger: Sequence[Entry]) -> dict[str, dict[str, int]]:
    """What became of the other elements, in total; written = kept, and replicas of it."""
    totals: dict[str, Counter[str]] = {name: Counter() for name in ("kept", "merged", "dropped", "written")}
    for result in results:
        for line in result["accounts"]:
            for name in ("kept", "merged", "dropped"):
                totals[name].update(line[name])
    for entry in ledger:
        totals["written"].update(entry.others)
    return {name: dict(counts) for name, counts in totals.items()}


def units(
    read_results: Sequence[Mapping[str, Any]], split_size: int, *, whole_channels: bool = False
) -> dict[str, Any]:
    """Splits packed into batches of about ``split_size`` bytes.

    With ``whole_channels`` a channel is not divided between units: on another host each would have to fetch all of it,
    because only its bytes tell where its chunks end.
    """
    batches: list[list[dict[str, Any]]] = []
    room = 0
    for split in splits(read_results):
        size = split["end"] - split["start"]
        goes_on = whole_channels and split["number"] > 0
        if not batches or (room < size and not goes_on):
            batches.append([])
            room = split_size
        batches[-1].append(split)
        room -= size
    return {f"{index:05d}": {"splits": batch} for index, batch in enumerate(batches)}


def splits(read_results: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The splits that read found, by channel and number: what a selection is made of, and made again."""
    channels = sorted((c for result in read_results for c in result["channels"]), key=lambda c: int(c["channel"]))
    for channel in channels:
        for number, split in enumerate(channel["splits"]):
            damaged = "quarantine" in channel
            yield {"channel": channel["channel"], "number": number, "damaged": damaged, **split}


def execute(job: Job, plan: Plan, unit: Mapping[str, Any], name: str) -> Outcome:
    """Select the records of the unit's splits; the runs lie in one file, addressed by parts."""
    file = join(job.directory, f"selection-{name}.arrow")
    parts: list[dict[str, Any]] = []
    selector = Selector(plan, filter_context(job, plan))
    with closing(selector), making(file, job.makes) as temporary, _carrier(job, name) as carrier:
        meter = Meter(job, unit_of(name), sum(split["tally"]["bytes"] for split in unit["splits"]))
        accounts = _write_selection(temporary, plan, selector, unit, parts, carrier, meter)
    detail = {"file": file, "parts": parts, "accounts": accounts, "page": selector.page.counts.to_json()}
    return Outcome(
        records=sum(part["entry"]["records"] for part in parts),
        bytes=sum(part["entry"]["bytes"] for part in parts),
        detail=detail if carrier is None else {**detail, "carried": carrier.uri},
    )


class _Carrier:
    """Bytes that the unit had to look at, by owner: whoever spills them need not read the source again."""

    def __init__(self, uri: str, sink: IO[bytes]) -> None:
        self.uri, self._sink = uri, sink

    def add(self, channel: ChannelBytes, starts: Longs, ends: Longs) -> list[int]:
        """Append the bytes of the runs; return where in the object they are, and their CRC-32C."""
        begin, crc32c = self._sink.tell(), 0
        for piece in bytes_of_runs(channel, starts, ends):
            self._sink.write(piece.data)
            crc32c = google_crc32c.extend(crc32c, piece)
        return [begin, self._sink.tell(), crc32c]


@contextmanager
def _carrier(job: Job, name: str) -> Iterator[_Carrier | None]:
    """None for a workspace on a disk: there everybody maps the source or its staged copy, and nothing is fetched."""
    if is_local(job.root):
        yield None
        return
    uri = join(job.directory, f"carried-{name}.bytes")
    with making(uri, job.makes) as temporary, temporary.open("xb") as sink:
        yield _Carrier(uri, sink)


def filter_context(job: Job, plan: Plan) -> FilterContext:
    """Filtering is on where some channel's records have several possible owners."""
    if all(len(channel.subtasks) == 1 for channel in plan.channels):
        return FilterContext.disabled()
    return FilterContext(enabled=True, page_size=job.page_size, spill_dirs=(str(job.makes),))


def _write_selection(
    path: Path,
    plan: Plan,
    selector: Selector,
    unit: Mapping[str, Any],
    parts: list[dict[str, Any]],
    carrier: _Carrier | None,
    meter: Meter,
) -> list[dict[str, Any]]:
    """The runs to the file, the parts to the list; returns what became of the splits' other elements."""
    accounts = []
    # A channel is fetched as a whole, so what of it need not be looked at is carried as well.
    fetched = {split["channel"] for split in unit["splits"] if selector.reads(split)}
    with pa.OSFile(str(path), "wb") as sink:
        for split in unit["splits"]:
            selection = selector.select(split)
            carries = carrier if split["channel"] in fetched else None
            channel = open_again(plan, split["channel"], split["damaged"]) if carries else None
            for lane, subtask in enumerate(plan.channels[split["channel"]].subtasks):
                columns, begin = selection.of_lane(lane), sink.tell()
                runs = _batch(columns).serialize()
                sink.write(runs)
                entry = Entry(_key(plan, split["channel"], subtask), selection.tallies[lane], selection.others[lane])
                place = {"range": [begin, sink.tell()], "crc32c": google_crc32c.value(runs)}
                part = {**_part(split, subtask, entry), **place}
                if carries is not None and channel is not None:
                    part["carried"] = carries.add(channel, columns[0], columns[1])
                parts.append(part)
            accounts.append({"channel": split["channel"], **selection.account})
            meter.add(*(sum(getattr(tally, name) for tally in selection.tallies) for name in ("records", "bytes")))
    return accounts


def _batch(columns: Sequence[Longs]) -> pa.RecordBatch:
    """The runs as they lie in memory; converting them column by column costs more than all else of a small channel."""
    arrays = [pa.Array.from_buffers(pa.int64(), len(each), [None, pa.py_buffer(each)]) for each in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=RUNS)


def _key(plan: Plan, number: int, subtask: int | None = None) -> ChannelKey:
    channel = plan.channels[number]
    index = None if subtask is None else plan.subtasks[subtask].index
    return ChannelKey(plan.exchanges[channel.exchange].name, channel.up, channel.down, index)


def _part(split: Mapping[str, Any], subtask: int, entry: Entry) -> dict[str, Any]:
    """A part is one record batch of the selection file: the runs of one split that one new subtask owns.

    ``range`` says where in the file it is, so that it can be read alone, and ``crc32c`` is the checksum of those bytes;
    ``carried``, if there is one, is the same for the bytes of its runs.
    """
    return {
        "channel": split["channel"],
        "split": split["number"],
        "damaged": split["damaged"],
        "subtask": subtask,
        "entry": entry.to_json(),
    }


def entries(results: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """The selection ledger: one line per (virtual channel, new subtask), its splits joined in order."""
    parts = sorted(
        (part for result in results for part in result["parts"]),
        key=lambda part: (int(part["channel"]), int(part["subtask"]), int(part["split"])),
    )
    joined: dict[ChannelKey, Entry] = {}
    for part in parts:
        entry = Entry.from_json(part["entry"])
        joined[entry.key] = joined[entry.key].then(entry) if entry.key in joined else entry
    return list(joined.values())


if __name__ == "__main__":
    from cdr_core.phases.main import main

    main("filter")
