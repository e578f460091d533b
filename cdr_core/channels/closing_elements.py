"""Closing elements of merged channels, as columns; the rule is in :mod:`cdr_core.channels.control_elements`.

A new channel that several virtual channels were merged into ends with at most one watermark, the minimum over all of
its feeds, and one status, *idle*, if every feed is idle. A feed without data has no watermark, so it rules both out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import CLOSING_STATUS, CLOSING_WATERMARK, Ledger, join_ledgers
from cdr_core.channels.control_elements import IDLE, MERGED_RULE, feed_counts, line_rules
from cdr_core.kernels import fingerprint, frames
from cdr_core.planning.plan import Plan

Longs = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

_WATERMARK_BYTES = frames.LENGTH_BYTES + 9
_STATUS_BYTES = frames.LENGTH_BYTES + 5
_NAMES = ("subtask", "line", "watermark", "has_watermark", "idle")


@dataclass(frozen=True, slots=True, eq=False)
class Closings:
    """One row per new channel that gets any, by new subtask: behind which line (that of its last feed in drain order),
    its watermark, if it has one, and whether it is idle.
    """

    subtask: Longs
    line: Longs
    watermark: Longs
    has_watermark: Flags
    idle: Flags

    def __len__(self) -> int:
        return len(self.line)

    def to_columns(self) -> dict[str, npt.NDArray[Any]]:
        return {name: getattr(self, name) for name in _NAMES}

    @classmethod
    def from_columns(cls, columns: Mapping[str, npt.NDArray[Any]]) -> Closings:
        return cls(*(columns[name] for name in _NAMES))

    def of_subtask(self, subtask: int) -> Closings:
        rows = slice(*np.searchsorted(self.subtask, (subtask, subtask + 1)))
        return Closings(*(getattr(self, name)[rows] for name in _NAMES))

    @property
    def ledger(self) -> Ledger:
        """Return the ledger lines that they add."""
        found = []
        for flag, kind in ((self.has_watermark, CLOSING_WATERMARK), (self.idle, CLOSING_STATUS)):
            lines = self.line[flag]
            sums = np.zeros((0, fingerprint.FOLD_COLUMNS), np.uint64)
            found.append(Ledger(lines[:0], sums, lines, np.full(len(lines), kind), np.ones(len(lines), np.int64)))
        return join_ledgers(found)

    @property
    def sizes(self) -> Longs:
        """Return the bytes of each row's elements, length fields included."""
        return np.where(self.has_watermark, _WATERMARK_BYTES, 0) + np.where(self.idle, _STATUS_BYTES, 0)

    @property
    def elements(self) -> Longs:
        return self.has_watermark.astype(np.int64) + self.idle

    def frames(self) -> Bytes:
        """Return all elements, one behind another."""
        begins = np.cumsum(self.sizes) - self.sizes
        data = np.zeros(int(self.sizes.sum()), np.uint8)
        marks = np.zeros((int(np.count_nonzero(self.has_watermark)), _WATERMARK_BYTES), np.uint8)
        marks[:, 3], marks[:, 4] = 9, frames.TAG_WATERMARK
        marks[:, 5:] = self.watermark[self.has_watermark].astype(">i8").view(np.uint8).reshape(-1, 8)
        data[begins[self.has_watermark][:, None] + np.arange(_WATERMARK_BYTES)] = marks
        status = np.zeros(_STATUS_BYTES, np.uint8)
        status[3], status[4] = 5, frames.TAG_WATERMARK_STATUS
        status[5:] = np.array([IDLE], ">i4").view(np.uint8)
        behind = begins + np.where(self.has_watermark, _WATERMARK_BYTES, 0)
        data[behind[self.idle][:, None] + np.arange(_STATUS_BYTES)] = status
        return data

    def ends(self) -> Longs:
        """Return where each element ends in the frames."""
        lengths = np.stack(
            (np.where(self.has_watermark, _WATERMARK_BYTES, 0), np.where(self.idle, _STATUS_BYTES, 0)), 1
        )
        return np.cumsum(lengths[lengths > 0])


def closings(plan: Plan, watermark: Longs, has_watermark: Flags, idle: Flags) -> Closings:
    """Return the closing elements of every merged new channel; the columns are by virtual channel."""
    channels = plan.channels
    lines = np.arange(int(channels.line_first[-1]))
    lines = lines[line_rules(plan, lines) == MERGED_RULE]
    channel, subtask = channels.of_lines(lines), channels.subtask_of_lines(lines)
    keys = np.stack((subtask, channels.exchange[channel], channels.new_up[channel]))
    unique, group = np.unique(keys, axis=1, return_inverse=True)
    count = unique.shape[1]
    lowest = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(lowest, group, np.where(has_watermark, watermark, np.iinfo(np.int64).max)[channel])
    known, resting = np.zeros(count, np.int64), np.zeros(count, np.int64)
    np.add.at(known, group, has_watermark[channel])
    np.add.at(resting, group, idle[channel])
    last = np.zeros(count, np.int64)
    np.maximum.at(last, group, lines)
    feeds = np.zeros(count, np.int64)
    feeds[group] = feed_counts(plan, lines)
    marked, quiet = known == feeds, resting == feeds
    some = marked | quiet
    return Closings(unique[0][some], last[some], np.where(marked, lowest, 0)[some], marked[some], quiet[some])
