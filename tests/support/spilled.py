"""What lies in a spill set, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cdr_core.drain.routed_delivery import PlannedSource
from cdr_core.planning.plan import Plan
from cdr_core.runtime.workspace import read_json
from cdr_core.spill.set_reader import read_segment
from cdr_core.spill.spill_set import SpillSet


@dataclass(frozen=True)
class SpilledPiece:
    """Elements of one virtual channel (by its number) for one new subtask (by its index) and new channel."""

    subtask: int
    new_up: int
    channel: int
    body: bytes
    positions: list[int]


def spilled(plan: Plan, manifest: str) -> Iterator[SpilledPiece]:
    """Everything in a set, in drain order."""
    spill_set = SpillSet.from_json(read_json(manifest))
    for number in range(spill_set.segments):
        segment = read_segment(spill_set, number, PlannedSource(plan))
        begins = np.append(0, segment.ends[:-1]).tolist()
        elements = np.append(0, np.cumsum(segment.elements)).tolist()
        for place, (line, begin, end) in enumerate(
            zip(segment.lines.tolist(), begins, segment.ends.tolist(), strict=True)
        ):
            channel = int(plan.channels.of_lines(np.array([line]))[0])
            yield SpilledPiece(
                plan.subtasks[spill_set.subtask].index,
                plan.channels[channel].new_up,
                channel,
                segment.body[begin:end].tobytes(),
                segment.positions[elements[place] : elements[place + 1]].tolist(),
            )
