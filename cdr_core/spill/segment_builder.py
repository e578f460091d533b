"""From selected parts to segments: runs of many channels are gathered into one buffer, tallied and appended.

A part may be as long as a whole split, because what passes through a filter is one run. It is cut here, between
records, so that segments stay near their size and memory does not depend on the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import CHAIN_WORD, CLOSING_STATUS, CLOSING_WATERMARK, RECORDS, Ledger
from cdr_core.errors import Unbalanced, Where
from cdr_core.kernels import channel_batches, fingerprint, frame_tally, frames
from cdr_core.spill.set_writer import SetWriter
from cdr_core.spill.spill_set import NO_REFERENCES, References

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_CLOSING = {frames.TAG_WATERMARK: CLOSING_WATERMARK, frames.TAG_WATERMARK_STATUS: CLOSING_STATUS}


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """Where the bytes of channels lie; see :func:`cdr_core.kernels.channel_batches.gather_runs`."""

    first: Longs
    address: Longs
    logical: Longs
    memory: object = None

    def with_blobs(self, blobs: Sequence[Bytes]) -> Chunks:
        """And behind them a channel of one chunk for each blob."""
        if not blobs:
            return self
        sizes = np.array([len(blob) for blob in blobs], np.int64)
        ends = np.stack((np.zeros(len(blobs), np.int64), sizes), axis=1).reshape(-1)
        places = np.array([blob.__array_interface__["data"][0] for blob in blobs], np.int64)
        return Chunks(
            np.append(self.first, self.first[-1] + 1 + np.arange(len(blobs))),
            np.append(self.address, places),
            np.append(self.logical, ends),
            (self.memory, blobs),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Parts in drain order: of which line, whether they are closing elements, and their runs.

    ``channel`` is per part, a place in the chunks; runs are start, end, first position, elements. Those of
    ``references`` stay in the source; ``sums`` and ``kinds`` are what was counted in them when they were selected.
    """

    line: Longs
    closing: npt.NDArray[np.bool_]
    channel: Longs
    run_first: Longs
    runs: Longs
    references: References = NO_REFERENCES
    sums: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros((0, fingerprint.FOLD_COLUMNS), np.uint64))
    kinds: Longs = field(default_factory=lambda: np.zeros((0, CLOSING_STATUS + 1), np.int64))

    def stored(self) -> Parts:
        """Those that are no references."""
        if not len(self.references.piece):
            return self
        keep = np.ones(len(self.line), bool)
        keep[self.references.piece] = False
        counts = np.diff(self.run_first)
        runs = self.runs[:, np.repeat(keep, counts)]
        first = np.append(0, np.cumsum(counts[keep]))
        return Parts(self.line[keep], self.closing[keep], self.channel[keep], first, runs)


class SegmentBuilder:
    """Gathers parts of one subtask, whose ``lines`` are known, and keeps its ledger."""

    def __init__(self, writer: SetWriter, segment_size: int, lines: Longs, where: Callable[[int], Where]) -> None:
        self._writer, self._segment_size, self._where = writer, segment_size, where
        self._lines = lines
        self._sums = np.zeros((len(lines), fingerprint.FOLD_COLUMNS), np.uint64)
        self._kinds = np.zeros((len(lines), CLOSING_STATUS + 1), np.int64)
        self._body = np.empty(segment_size, np.uint8)

    @property
    def ledger(self) -> Ledger:
        self._kinds[:, : frames.TAG_RECORD + 1] = 0  # records are in the sums
        return Ledger.of(self._lines, self._sums, self._kinds)

    @property
    def done(self) -> tuple[int, int]:
        """Records and their bytes so far."""
        records, size = self._sums[:, fingerprint.SIZES].sum(axis=0)
        return int(records), int(size)

    def together(self, chunks: Chunks, parts: Parts) -> None:
        """Parts that are one segment together."""
        stored, counts = parts.stored(), np.diff(parts.run_first)
        start, end, position, elements = parts.runs
        sizes, wanted = _between(end - start, parts.run_first), _between(elements, parts.run_first)
        body = self._gathered(chunks, stored)
        if len(parts.references.piece) or parts.closing.any():
            self._tally_apart(body, parts, sizes, wanted)
        else:
            rows, found, ends = (
                np.searchsorted(self._lines, parts.line),
                np.zeros(len(sizes), np.int64),
                np.cumsum(sizes),
            )
            bad = channel_batches.tally_pieces(body, ends - sizes, ends, rows, self._sums, self._kinds, found)
            self._require(parts, bad, found, wanted)
        self._writer.append(body, parts.line, sizes, wanted, (counts, position, elements), parts.references)

    def _gathered(self, chunks: Chunks, stored: Parts) -> Bytes:
        start, end = stored.runs[:2]
        body = self._room(int((end - start).sum()))
        channel = np.repeat(stored.channel, np.diff(stored.run_first))
        channel_batches.gather_runs(chunks.first, chunks.address, chunks.logical, channel, start, end, body)
        return body

    def _tally_apart(self, body: Bytes, parts: Parts, sizes: Longs, wanted: Longs) -> None:
        """Each part on a row of its own first: references were counted when they were selected, and closing elements
        have kinds of their own. Then they are joined to their lines, in order.
        """
        count, mine = len(parts.line), parts.references.piece
        sums = np.zeros((count, self._sums.shape[1]), np.uint64)
        kinds = np.zeros((count, self._kinds.shape[1]), np.int64)
        stored = np.ones(count, bool)
        stored[mine] = False
        ends, found = np.cumsum(sizes[stored]), np.zeros(int(stored.sum()), np.int64)
        bad = channel_batches.tally_pieces(body, ends - sizes[stored], ends, np.flatnonzero(stored), sums, kinds, found)
        self._require(parts.stored(), bad, found, wanted[stored])
        kinds[parts.closing] = self._closing_kinds(sums[parts.closing], kinds[parts.closing])
        sums[mine], kinds[mine] = parts.sums, parts.kinds
        rows = np.searchsorted(self._lines, parts.line)
        powers = np.empty(count, np.uint64)
        channel_batches.chain_powers(CHAIN_WORD, np.ascontiguousarray(sums[:, RECORDS]), powers)
        channel_batches.join_sums(rows, sums, powers, self._sums)
        np.add.at(self._kinds, rows, kinds)

    def _closing_kinds(self, sums: npt.NDArray[np.uint64], kinds: Longs) -> Longs:
        found = np.zeros_like(kinds)
        for tag, kind in _CLOSING.items():
            found[:, kind] = kinds[:, tag]
        if found.sum() != kinds.sum() or sums.any():
            raise Unbalanced("spill wrote other closing elements than a watermark and a status")
        return found

    def _require(self, parts: Parts, bad: int, found: Longs, wanted: Longs) -> None:
        wrong = np.flatnonzero(found != wanted)
        if bad >= 0 or len(wrong):
            place = bad if bad >= 0 else int(wrong[0])
            what = f"spill gathered {found[place]} elements where {wanted[place]} were selected"
            raise Unbalanced(what, where=self._where(int(parts.line[place])))

    def large(self, chunks: Chunks, parts: Parts, told: Callable[[], None]) -> None:
        """One part that is more than a segment: some of its runs at a time, and pieces of a run that is longer."""
        ends = np.cumsum(parts.runs[1] - parts.runs[0])
        at = 0
        while at < parts.runs.shape[1]:
            before = int(ends[at - 1]) if at else 0
            upto = int(np.searchsorted(ends, before + self._segment_size, side="right"))
            if upto > at:
                few = Parts(parts.line, parts.closing, parts.channel, np.array([0, upto - at]), parts.runs[:, at:upto])
                self.together(chunks, few)
            else:
                upto = at + 1
                self._long(chunks, parts, *(int(value) for value in parts.runs[:, at]), told=told)
            told()
            at = upto

    def _long(
        self, chunks: Chunks, parts: Parts, start: int, end: int, position: int, count: int, *, told: Callable[[], None]
    ) -> None:
        """One run longer than a segment: copied piece by piece, each cut after its last whole element."""
        row = int(np.searchsorted(self._lines, parts.line[0]))
        at, left, wanted = start, count, self._segment_size
        while at < end:
            size = min(wanted, end - at)
            body = self._room(size)
            channel_batches.gather_runs(
                chunks.first, chunks.address, chunks.logical, parts.channel, np.array([at]), np.array([at + size]), body
            )
            sums, kinds = self._sums[row : row + 1], self._kinds[row, : frames.TAGS]
            found, used, _, _ = frame_tally.tally_frames(body, size, left, sums, kinds)
            if not found:
                if size == end - at:
                    what = f"spill gathered {count - left} elements where {count} were selected"
                    raise Unbalanced(what, where=self._where(int(parts.line[0])))
                wanted = 2 * size  # a record that is longer than the room
                continue
            runs = np.array([1]), np.array([position]), np.array([found])
            self._writer.append(body[:used], parts.line, np.array([used]), np.array([found]), runs)
            at, left, position, wanted = at + used, left - found, position + found, self._segment_size
            told()
        if left:
            what = f"spill gathered {count - left} elements where {count} were selected"
            raise Unbalanced(what, where=self._where(int(parts.line[0])))

    def _room(self, size: int) -> Bytes:
        if size > len(self._body):
            return np.empty(size, np.uint8)
        return self._body[:size]


def _between(values: Longs, first: Longs) -> Longs:
    """The sum of the values of each part."""
    total: Longs = np.append(0, np.cumsum(values))
    return total[first[1:]] - total[first[:-1]]
