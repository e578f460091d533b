"""The consumer of a recovering subtask: whole records of the pages it is handed go to prepared files.

A page may end inside a record: its head waits here for the rest, and is part of what a cut leaves to be done.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import Tally
from cdr_core.commit.committable import PreparedFile
from cdr_core.drain.remaining import Slice
from cdr_core.kernels import frames
from cdr_core.phases.draining import said as saying
from cdr_core.phases.draining.outputs import Output
from cdr_core.spill.reader import SegmentBody, read_positions
from cdr_core.spill.segments import SpillSet

if TYPE_CHECKING:
    from cdr_core.drain.pages import Page

Bytes = npt.NDArray[np.uint8]

NOWHERE = np.zeros(0, np.int64)
"""The positions of records that nobody asks for."""


@dataclass(slots=True)
class _Open:
    """The segment a channel is in: bytes held back begin at ``offset`` of its body, after ``frames`` frames."""

    segment: int
    offset: int
    frames: int
    chunks: list[Bytes] = field(default_factory=list)
    held: int = 0


class Consumer:
    """Turns pages into prepared files, one per cut. Leaving it by an error removes the file that was open."""

    def __init__(self, spill_set: SpillSet, output: Output[Any], frames_done: Mapping[int, int]) -> None:
        self._set, self._output = spill_set, output
        self._with_data = sorted({(segment.gate, segment.channel) for segment in spill_set.segments})
        self._first = [0, *accumulate(segment.records for segment in spill_set.segments)]
        self._frames_done = dict(frames_done)
        self._open: dict[tuple[int, int], _Open] = {}

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._output.__exit__(kind, error, trace)

    @property
    def tallies(self) -> dict[int, Tally]:
        """What was written, by virtual channel, what an earlier task did included."""
        return self._output.tallies

    @property
    def said(self) -> dict[str, Any]:
        """What the input has said of its watermark up to here, for a cut."""
        return saying.to_json(self._with_data, self._output.said)

    def take(self, page: Page) -> None:
        """The next page of its channel. Its bytes are kept until their record is whole; the page itself is free."""
        at = page.slice
        opened = self._open.get((page.gate, page.channel))
        if opened is None or opened.segment != at.segment:
            opened = _Open(at.segment, at.offset, self._frames_done.pop(at.segment, 0))
            self._open[page.gate, page.channel] = opened
        assert opened.offset + opened.held == at.offset, "pages of a channel come in order"
        opened.chunks.append(page.data)
        opened.held += at.length
        segment = self._set.segments[at.segment]
        if opened.offset + opened.held == segment.length:
            self._build(opened, segment.records - opened.frames, opened.held)
            del self._open[page.gate, page.channel]

    def cut(self) -> tuple[Slice, ...]:
        """Everything whole is written and the file is closed; what is left are the heads of records not yet whole."""
        heads = []
        for opened in self._open.values():
            self._build(opened, *_whole_frames(opened))
            if opened.held:
                heads.append(Slice(opened.segment, opened.offset, opened.held))
        self._output.close_file()
        return tuple(heads)

    def frames_done(self) -> dict[int, int]:
        """Per open segment, how many of its frames were written; a resume needs it to number the rest."""
        return {opened.segment: opened.frames for opened in self._open.values()} | self._frames_done

    def take_files(self) -> tuple[PreparedFile, ...]:
        """The files closed since they were last asked for."""
        return self._output.take_files()

    def keep_files(self, files: tuple[PreparedFile, ...]) -> None:
        """They were asked for and not handed over: the next one who asks gets them."""
        self._output.keep_files(files)

    def _build(self, opened: _Open, count: int, used: int) -> None:
        """Write the first ``count`` frames that are held back, which are ``used`` bytes."""
        if count == 0:
            return
        data = _joined(opened.chunks)
        segment = self._set.segments[opened.segment]
        positions = NOWHERE
        if self._output.needs_positions:
            positions = read_positions(self._set, segment, self._first[opened.segment])[opened.frames :][:count]
        if (count, used) != (segment.records, segment.length):
            segment = replace(segment, records=count, length=used)
        self._output.write(SegmentBody(segment, data[:used], positions))
        opened.chunks = [data[used:]] if used < len(data) else []
        opened.offset, opened.held = opened.offset + used, opened.held - used
        opened.frames += count


def _joined(chunks: list[Bytes]) -> Bytes:
    """The chunks as one; pages are views of their segment's body, so most often nothing has to be copied."""
    if len(chunks) == 1:
        return chunks[0]
    body, size = chunks[0].base, sum(map(len, chunks))
    if isinstance(body, np.ndarray) and body.dtype == np.uint8 and all(chunk.base is body for chunk in chunks):
        ends = [_address(chunk) + len(chunk) for chunk in chunks]
        if ends[:-1] == [_address(chunk) for chunk in chunks[1:]]:
            begin = _address(chunks[0]) - _address(body)
            return body[begin : begin + size]
    return np.concatenate(chunks)


def _address(data: Bytes) -> int:
    return int(data.__array_interface__["data"][0])


def _whole_frames(opened: _Open) -> tuple[int, int]:
    """How many frames that are held back are whole, and their bytes."""
    if not opened.chunks:
        return 0, 0
    data = np.concatenate(opened.chunks)
    opened.chunks = [data]
    capacity = len(data) // frames.LENGTH_BYTES + 1
    starts, ends, tags = np.empty(capacity, np.int64), np.empty(capacity, np.int64), np.empty(capacity, np.int8)
    found, used, _ = frames.scan_frames(data, len(data), starts, ends, tags, np.iinfo(np.int64).max)
    return found, used
