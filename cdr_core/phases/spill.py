"""spill: gather each new subtask's records into a sealed spill set, in the order in which they will be drained.

Unit: a new subtask. Order: by stage of the drain order, gate, new channel, virtual channel, split; within a virtual
channel the source's own order. Elements that are not records are selected like them; behind the records of a new
channel that several virtual channels were merged into come its closing elements
(:mod:`cdr_core.channels.control_elements`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import BYTES, CLOSING_STATUS, Ledger, join_ledgers, require_equal, require_others
from cdr_core.channels.batch_scan import Scanned
from cdr_core.channels.channel_batch import BatchSource, batch_source
from cdr_core.channels.channel_layout import LayoutReader
from cdr_core.channels.closing_elements import Closings, closings
from cdr_core.channels.control_elements import CLOSING_POSITION
from cdr_core.channels.grouping import group_ends
from cdr_core.errors import Where
from cdr_core.faults import reach
from cdr_core.kernels.fingerprint import FOLD_COLUMNS
from cdr_core.metadata import Phase, SpillFile
from cdr_core.phases import filter as filtering
from cdr_core.phases.filter import selected_by
from cdr_core.phases.read import scanned_by
from cdr_core.planning.drain_order import stages
from cdr_core.planning.plan import Plan
from cdr_core.runtime.earlier_versions import ledger_of_entries
from cdr_core.runtime.phase_ledgers import line_key, recorded, summed_lines
from cdr_core.runtime.selection_blocks import BLOCK, Blocks, write_index
from cdr_core.runtime.unit_progress import Meter, unit_of
from cdr_core.runtime.unit_runner import Finished, Job, Outcome
from cdr_core.runtime.workspace import write_json
from cdr_core.spill.remote_upload import shipping
from cdr_core.spill.segment_builder import Chunks, Parts, SegmentBuilder
from cdr_core.spill.set_writer import SetWriter
from cdr_core.spill.spill_set import NO_REFERENCES, References
from cdr_core.spill.tiered_files import Place
from cdr_core.spill.tiers import Tier, refuse_beside, tiers_of
from cdr_core.storage import join, storage_for
from cdr_core.storage.column_codec import read_columns, write_columns

if TYPE_CHECKING:
    from cdr_core.metadata import FencedTransaction
    from cdr_core.runtime.driver import Drive

Longs = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

Referable = Callable[[int, int], bool]

AFTER_ALL_SPLITS = 1 << 62
"""The split of closing elements, for the order of parts."""

INDEX, CLOSINGS = "selections.msgpack", "closings.msgpack"
INPUTS = "inputs"
"""In a unit's result: the two files that it read, each with its SHA-256."""

MOST_PARTS = 1 << 16
"""Parts of a segment."""

KEPT_SHARE = 4
"""The part of the memory budget that decoded blocks may take: neighbours in drain order lie in a few of them."""


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


def spilled_by(drive: Drive) -> Ledger:
    """The spill ledger, by line."""
    return join_ledgers(
        Ledger.from_columns(unit.columns) if unit.columns else ledger_of_entries(drive.plan, unit.detail["ledger"])
        for unit in drive.columns(Phase.SPILL)
    )


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


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Parts of the subtask from one unit of filter. Of those that are carried, ``places`` says where in the carried
    bytes each run begins; −1 for the others. The parts ``summed`` may stay in the source: ``crc32c``, ``sums`` and
    ``kinds`` were noted when they were selected.
    """

    line: Longs
    split: Longs
    run_first: Longs
    runs: Longs
    places: Longs
    damaged: npt.NDArray[np.bool_]
    carried: Bytes | None
    summed: Longs
    crc32c: Longs
    sums: npt.NDArray[np.uint64]
    kinds: Longs

    @classmethod
    def of(cls, columns: Mapping[str, npt.NDArray[Any]], carried: Bytes | None) -> _Block:
        run_first, runs = columns["run_first"], columns["runs"]
        places = np.full(runs.shape[1], -1, np.int64)
        if carried is not None:
            mine = np.repeat(columns["carried"], np.diff(run_first))
            lengths = np.where(mine, runs[1] - runs[0], 0)
            places[mine] = (np.cumsum(lengths) - lengths)[mine]
        own = columns["line"], columns["split"], run_first, runs, places, columns["damaged"], carried
        if "summed" not in columns:  # the version before filtered
            return cls(*own, *_no_sums())
        return cls(*own, columns["summed"], columns["crc32c"], columns["sums"], columns["kinds"])

    @property
    def bytes(self) -> int:
        return self.runs.nbytes + self.places.nbytes + (0 if self.carried is None else len(self.carried))

    @property
    def sizes(self) -> Longs:
        """Bytes of each part."""
        total: Longs = np.append(0, np.cumsum(self.runs[1] - self.runs[0]))
        return total[self.run_first[1:]] - total[self.run_first[:-1]]


class OwnedParts:
    """The parts of one new subtask in drain order, closing elements included; runs are loaded when they are needed."""

    def __init__(
        self,
        plan: Plan,
        subtask: int,
        blocks: Blocks,
        closing: Closings,
        drain_order: Sequence[str] = (),
        referable: Referable = lambda channel, size: False,
    ) -> None:
        self._plan, self._blocks, self._referable = plan, blocks, referable
        self._loaded: dict[int, _Block] = {}
        self._closing = _closing_block(closing.of_subtask(subtask))
        found = [self._listed(number) for number in range(len(blocks) + 1)]
        line, split, block, part, size = np.concatenate(found, axis=1)
        channel = plan.channels.of_lines(line)
        gates = np.array([exchange.gate for exchange in plan.exchanges], np.int64)[plan.channels.exchange[channel]]
        stage = stages(plan, drain_order)[plan.channels.exchange[channel]]
        order = np.lexsort((split, channel, plan.channels.new_up[channel], gates, stage))
        self.line, self.block, self.part, self.size = line[order], block[order], part[order], size[order]
        self.exchange = plan.channels.exchange[channel[order]]

    def __len__(self) -> int:
        return len(self.line)

    @property
    def is_closing(self) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = self.block == len(self._blocks)
        return found

    def _listed(self, number: int) -> Longs:
        """Line, split, block, part and bytes of each part of a block."""
        block = self._load(number)
        count = len(block.line)
        return np.stack((block.line, block.split, np.full(count, number), np.arange(count), block.sizes))

    def _load(self, number: int) -> _Block:
        if number == len(self._blocks):
            return self._closing
        if number not in self._loaded:
            if sum(block.bytes for block in self._loaded.values()) > self._blocks.budget // KEPT_SHARE:
                self._loaded.clear()
            self._loaded[number] = _Block.of(*self._blocks.load(number))
        return self._loaded[number]

    def group(self, source: BatchSource, begin: int, end: int) -> tuple[Chunks, Parts]:
        """Parts ``begin`` to ``end``, and where their bytes lie: in the source, or in memory already."""
        needed = np.unique(self.block[begin:end]).tolist()
        blocks = {number: self._load(number) for number in needed}
        counts = np.zeros(end - begin, np.int64)
        for number, block in blocks.items():
            mine = self.block[begin:end] == number
            counts[mine] = np.diff(block.run_first)[self.part[begin:end][mine]]
        first = np.append(0, np.cumsum(counts))
        runs, place = np.empty((4, first[-1]), np.int64), np.full(first[-1], -1, np.int64)
        blob, damaged = np.full(end - begin, -1, np.int64), np.zeros(end - begin, bool)
        for number, block in blocks.items():
            mine = np.flatnonzero(self.block[begin:end] == number)
            damaged[mine] = block.damaged[self.part[begin:end][mine]]
            own = block.run_first[self.part[begin:end][mine]]
            targets = np.repeat(first[mine], counts[mine]) + _counting(counts[mine])
            sources = np.repeat(own, counts[mine]) + _counting(counts[mine])
            runs[:, targets], place[targets] = block.runs[:, sources], block.places[sources]
            if block.carried is not None:
                blob[mine] = np.where(block.places[own] >= 0, needed.index(number), -1)
        references, sums, kinds = self._references(blocks, begin, end, first, runs)
        stays = np.zeros(end - begin, bool)
        stays[references.piece] = True
        inside = place >= 0
        lengths = runs[1] - runs[0]
        runs[0] = np.where(inside, place, runs[0])
        runs[1] = runs[0] + lengths
        line = self.line[begin:end]
        opened = (blob < 0) & ~stays
        numbers = self._plan.channels.of_lines(line[opened])
        unique, first_of, places = np.unique(numbers, return_index=True, return_inverse=True)
        batch = source.open(unique, damaged[opened][first_of])
        carried = [blocks[number].carried for number in needed]
        empty = np.zeros(0, np.uint8)
        chunks = Chunks(batch.first, batch.address, batch.logical, batch).with_blobs(
            [empty if each is None else each for each in carried]
        )
        channel = np.where(blob >= 0, len(unique) + blob, 0)
        channel[opened] = places
        return chunks, Parts(line, self.is_closing[begin:end], channel, first, runs, references, sums, kinds)

    def _references(
        self, blocks: Mapping[int, _Block], begin: int, end: int, first: Longs, runs: Longs
    ) -> tuple[References, npt.NDArray[np.uint64], Longs]:
        """Those of the parts that stay in the source, and what was counted in them."""
        found: list[tuple[int, int]] = []
        for number, block in blocks.items():
            mine = np.flatnonzero(self.block[begin:end] == number)
            mine = mine[np.isin(self.part[begin:end][mine], block.summed)]
            for at in mine.tolist():
                part = int(self.part[begin + at])
                is_carried = block.places[block.run_first[part]] >= 0
                channel = int(self._plan.channels.of_lines(self.line[[begin + at]])[0])
                if not is_carried and self._referable(channel, int(self.size[begin + at])):
                    found.append((at, int(np.searchsorted(block.summed, part))))
        found.sort()
        if not found:
            return NO_REFERENCES, *_no_sums()[2:]
        of = [blocks[int(self.block[begin + piece])] for piece, _ in found]
        piece = np.array([piece for piece, _ in found])
        rows = [row for _, row in found]
        crc32c = np.array([block.crc32c[row] for block, row in zip(of, rows, strict=True)])
        sums = np.stack([block.sums[row] for block, row in zip(of, rows, strict=True)])
        kinds = np.stack([block.kinds[row] for block, row in zip(of, rows, strict=True)])
        ranges = [runs[:2, first[at] : first[at + 1]] for at, _ in found]
        starts, ends = np.concatenate(ranges, axis=1)
        of_piece = np.cumsum([0, *(each.shape[1] for each in ranges)])
        return References(piece, crc32c, of_piece, starts, ends), sums, kinds


def _counting(counts: Longs) -> Longs:
    """0, 1, … for each of the counts, one behind another."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def _closing_block(mine: Closings) -> _Block:
    """Closing elements as parts: each has a run of its own, without a place in a virtual channel."""
    ends = mine.ends()
    begins = np.append(0, ends[:-1]) if len(ends) else ends
    ones = np.ones(len(ends), np.int64)
    runs = np.stack((begins, ends, np.full(len(ends), CLOSING_POSITION), ones))
    first = np.append(0, np.cumsum(mine.elements))
    behind, sound = np.full(len(mine), AFTER_ALL_SPLITS), np.zeros(len(mine), bool)
    return _Block(mine.line, behind, first, runs, begins, sound, mine.frames(), *_no_sums())


def _no_sums() -> tuple[Longs, Longs, npt.NDArray[np.uint64], Longs]:
    nothing, sums = np.zeros(0, np.int64), np.zeros((0, FOLD_COLUMNS), np.uint64)
    return nothing, nothing, sums, np.zeros((0, CLOSING_STATUS + 1), np.int64)


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
