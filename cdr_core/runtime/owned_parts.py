"""The parts of one new subtask in drain order: loaded from the blocks of the selections when they are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import CLOSING_STATUS
from cdr_core.channels.channel_batch import BatchSource
from cdr_core.channels.closing_elements import Closings
from cdr_core.channels.control_elements import CLOSING_POSITION
from cdr_core.kernels.fingerprint import FOLD_COLUMNS
from cdr_core.planning.drain_order import stages
from cdr_core.planning.plan import Plan
from cdr_core.runtime.selection_blocks import Blocks, Referable
from cdr_core.spill.segment_builder import Chunks, Parts
from cdr_core.spill.spill_set import NO_REFERENCES, References

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


AFTER_ALL_SPLITS = 1 << 62
"""The split of closing elements, for the order of parts."""


KEPT_SHARE = 4
"""The part of the memory budget that decoded blocks may take: neighbours in drain order lie in a few of them."""


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
