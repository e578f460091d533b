"""Input or output: the side of the new channels that elements go on, if the target is a checkpoint.

*Keep*: an element that begins in input state becomes input state, whole, also one that ends in output state; one that
lies in output state stays output state. So the order of a virtual channel is kept: Flink reads a channel's input state
before anything that its upstream sends. *Recover output downstream*: everything becomes input state.

Closing elements (:mod:`cdr_core.channels.control_elements`) come behind all elements of the channel's feeds: on the
output side if any of them has output state, else on the input side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import RECORDS
from cdr_core.channels.batch_scan import Scanned
from cdr_core.channels.control_elements import CLOSING_POSITION
from cdr_core.planning.plan import Plan

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Borders:
    """Per line, in order: elements before position ``input_end`` begin in input state; ``closing_output``: its closing
    elements are on the output side.
    """

    lines: Longs
    input_end: Longs
    closing_output: Flags

    def is_output(self, lines: Longs, positions: Longs) -> Flags:
        """Return which of some elements go on as output state."""
        rows = np.searchsorted(self.lines, lines)
        found: Flags = np.where(
            positions == CLOSING_POSITION, self.closing_output[rows], positions >= self.input_end[rows]
        )
        return found

    def of_subtask(self, plan: Plan, subtask: int) -> Borders:
        selected = plan.channels.subtask_of_lines(self.lines) == subtask
        return Borders(self.lines[selected], self.input_end[selected], self.closing_output[selected])

    def to_columns(self) -> dict[str, npt.NDArray[Any]]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_columns(cls, columns: Mapping[str, npt.NDArray[Any]]) -> Borders:
        return cls(*(columns[name] for name in cls.__slots__))


def borders(plan: Plan, scanned: Scanned) -> Borders:
    """Return the borders of every line of the plan, from the channels that `read` scanned."""
    input_end, ends = scanned.channels["input_end"], np.zeros(len(plan.channels), np.int64)
    ledger, counts = scanned.ledger, np.zeros(len(scanned.splits["split_channel"]), np.int64)
    np.add.at(counts, ledger.lines, ledger.sums[:, RECORDS].astype(np.int64))
    np.add.at(counts, ledger.other_lines, ledger.other_counts)
    np.maximum.at(ends, scanned.splits["split_channel"], scanned.splits["split_position"] + counts)
    with_output = input_end < ends
    lines = np.arange(int(plan.channels.line_first[-1]))
    channels, subtasks = plan.channels.of_lines(lines), plan.channels.subtask_of_lines(lines)
    places = np.stack((plan.channels.exchange[channels], plan.channels.new_up[channels], subtasks))
    _, group = np.unique(places, axis=1, return_inverse=True)
    closing = np.zeros(int(group.max(initial=-1)) + 1, bool)
    np.logical_or.at(closing, group, with_output[channels])
    return Borders(lines, input_end[channels], closing[group])
