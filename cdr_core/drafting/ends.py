"""The ends of exchanges that a checkpoint shows: gates with input state, partitions with output state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cdr_core.errors import SpecRefused
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.flink.metadata import OperatorState, Side


@dataclass(frozen=True, slots=True, eq=False)
class End:
    """One side's state on one gate or partition: ``channels`` are (upstream subtask, downstream subtask).

    Compared by identity: an operator's value is large, and each end is found once.
    """

    operator: OperatorState
    side: Side
    index: int
    channels: frozenset[tuple[int, int]]

    def fits(self, other: End) -> bool:
        """Return whether the two sides can belong together, by the numbers of subtasks alone."""
        output, gate = (self, other) if self.side is Side.OUTPUT else (other, self)
        return (
            output.operator.operator_id != gate.operator.operator_id
            and max(down for _, down in output.channels) < gate.operator.parallelism
            and max(up for up, _ in gate.channels) < output.operator.parallelism
        )


def find_ends(checkpoint: Checkpoint, side: Side) -> list[End]:
    """Return every gate or partition with state, in the order of the metadata."""
    ends = []
    for operator in checkpoint.metadata.operators:
        columns = checkpoint.columns(operator, side)
        for index in np.unique(columns.a).tolist():
            selected = columns.a == index
            here, there = columns.subtask[selected].tolist(), columns.b[selected].tolist()
            up, down = (there, here) if side is Side.INPUT else (here, there)
            ends.append(End(operator, side, index, frozenset(zip(up, down, strict=True))))
    return ends


def spell(checkpoint: Checkpoint, operator: OperatorState) -> str:
    """Return a spec's name of the operator: uid, else name, else id; an id also where several operators
    share the name.
    """
    for name in (operator.uid, operator.name):
        try:
            if name and checkpoint.operator(name) is operator:
                return name
        except SpecRefused:
            continue
    return operator.operator_id
