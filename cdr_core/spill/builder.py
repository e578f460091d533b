"""From selected parts to segments: runs of many channels are gathered into one buffer, tallied and appended.

A part may be as long as a whole split, because what passes through a filter is one run. It is cut here, between
records, so that segments stay near their size and memory does not depend on the data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import CLOSING_STATUS, CLOSING_WATERMARK, Ledger
from cdr_core.errors import Unbalanced, Where
from cdr_core.kernels import batches, fingerprint, frames, tallying
from cdr_core.spill.set_writer import SetWriter

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

_CLOSING = {frames.TAG_WATERMARK: CLOSING_WATERMARK, frames.TAG_WATERMARK_STATUS: CLOSING_STATUS}


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """Where the bytes of channels lie; see :func:`cdr_core.kernels.batches.gather_runs`."""

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

    ``channel`` is per part, a place in the chunks; runs are start, end, first position, elements.
    """

    line: Longs
    closing: npt.NDArray[np.bool_]
    channel: Longs
    run_first: Longs
    runs: Longs


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
        counts = np.diff(parts.run_first)
        start, end, position, elements = parts.runs
        total = np.append(0, np.cumsum(end - start))
        ends, size = total[parts.run_first[1:]], int(total[-1])
        body = self._room(size)
        batches.gather_runs(
            chunks.first, chunks.address, chunks.logical, np.repeat(parts.channel, counts), start, end, body
        )
        expected = np.append(0, np.cumsum(elements))
        wanted = expected[parts.run_first[1:]] - expected[parts.run_first[:-1]]
        self._tally(body, parts, ends, wanted)
        self._writer.append(body, parts.line, np.diff(np.append(0, ends)), wanted, (counts, position, elements))

    def _tally(self, body: Bytes, parts: Parts, ends: Longs, wanted: Longs) -> None:
        rows, found = np.searchsorted(self._lines, parts.line), np.zeros(len(ends), np.int64)
        count, tags, begins = len(self._lines), frames.TAGS, np.append(0, ends[:-1])
        closing = np.flatnonzero(parts.closing)
        if not len(closing):
            bad = batches.tally_pieces(body, begins, ends, rows, self._sums, self._kinds, found)
        else:
            # Closing elements are counted on lines of their own first: they have kinds of their own.
            apart = rows.copy()
            apart[closing] = count + np.arange(len(closing))
            sums = np.concatenate((self._sums, np.zeros((len(closing), self._sums.shape[1]), np.uint64)))
            kinds = np.concatenate((self._kinds, np.zeros((len(closing), self._kinds.shape[1]), np.int64)))
            bad = batches.tally_pieces(body, begins, ends, apart, sums, kinds, found)
            self._sums, self._kinds = sums[:count], kinds[:count]
            for tag, kind in _CLOSING.items():
                np.add.at(self._kinds[:, kind], rows[closing], kinds[count:, tag])
            if kinds[count:, tags:].any() or sums[count:].any():
                raise Unbalanced("spill wrote other closing elements than a watermark and a status")
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
            batches.gather_runs(
                chunks.first, chunks.address, chunks.logical, parts.channel, np.array([at]), np.array([at + size]), body
            )
            sums, kinds = self._sums[row : row + 1], self._kinds[row, : frames.TAGS]
            found, used, _, _ = tallying.tally_frames(body, size, left, sums, kinds)
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
