"""Input or output: on which side of the new channels elements go on, where what we write is a checkpoint again.

*Keep*: an element that begins in input state becomes input state, whole, also one that ends in output state; one that
lies in output state stays output state. So the order of a virtual channel is kept: Flink reads a channel's input state
before anything that its upstream sends. *Recover output downstream*: everything becomes input state.

Closing elements (:mod:`cdr_core.rescale.other_elements`) come behind everything that the channel's feeds hold: on the
output side if any of them has output state, else on the input side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cdr_core.rescale.other_elements import CLOSING_POSITION
from cdr_core.rescale.plan import Plan


@dataclass(frozen=True, slots=True)
class Border:
    """Of a virtual channel: elements before position ``input_end`` begin in input state; ``closing_output`` says on
    which side of a new subtask's channel its closing elements are.
    """

    input_end: int
    closing_output: bool

    def input_elements(self, positions: npt.NDArray[np.int64]) -> int:
        """How many of these elements of the channel, which are in order, go on as input state."""
        closing = positions == CLOSING_POSITION
        output = np.where(closing, self.closing_output, positions >= self.input_end)
        count = int(np.count_nonzero(~output))
        assert not output[:count].any(), "input comes before output"
        return count


def borders(plan: Plan, channels: Sequence[Mapping[str, Any]]) -> dict[int, dict[int, Border]]:
    """By new subtask and virtual channel, from what `read` found in the channels."""
    input_end: dict[int, int] = {}
    with_output: set[int] = set()
    for found in channels:
        number = int(found["channel"])
        input_end[number] = int(found["input_end"])
        if input_end[number] < _end(found["splits"]):
            with_output.add(number)
    closing = {
        (channel.exchange, channel.new_up, subtask)
        for number, channel in enumerate(plan.channels)
        for subtask in channel.subtasks
        if number in with_output
    }
    result: dict[int, dict[int, Border]] = {number: {} for number in range(len(plan.subtasks))}
    for number, channel in enumerate(plan.channels):
        for subtask in channel.subtasks:
            place = (channel.exchange, channel.new_up, subtask)
            result[subtask][number] = Border(input_end[number], place in closing)
    return result


def _end(splits: Sequence[Mapping[str, Any]]) -> int:
    """One behind the channel's last element."""
    if not splits:
        return 0
    last = splits[-1]
    return int(last["position"] + last["tally"]["records"] + sum(last["others"].values()))
