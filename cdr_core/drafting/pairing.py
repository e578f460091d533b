"""Pairs output state with input state, which the metadata does not connect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cdr_core.drafting.ends import End
from cdr_core.drafting.framing import Evidence

MOST_COMPARED: Final = 400
"""Pairs whose bytes are compared; a job with more of them needs its plan to be drafted."""


@dataclass(frozen=True, slots=True)
class Pair:
    """An exchange as far as the checkpoint shows it.

    ``output`` and ``gate``: its two ends, ``None`` where there is no state, or where several would fit; the latter are
    the ``candidates``. ``reason`` explains how certain the pair is.
    """

    output: End | None
    gate: End | None
    reason: str
    candidates: tuple[End, ...] = ()


def pair_ends(
    gates: Sequence[End], outputs: Sequence[End], compare: Callable[[End, End], Evidence]
) -> tuple[Pair, ...]:
    """Return pairs for all gates, then the remaining outputs. ``compare(output, gate)`` examines the bytes."""
    fitting = {gate: [output for output in outputs if output.fits(gate)] for gate in gates}
    evidence: dict[tuple[End, End], Evidence] = {}
    if sum(len(found) for found in fitting.values()) <= MOST_COMPARED:
        evidence = {(output, gate): compare(output, gate) for gate in gates for output in fitting[gate]}
    possible = {
        gate: [output for output in found if (output, gate) not in evidence or not evidence[output, gate].contradicted]
        for gate, found in fitting.items()
    }
    certain = _eliminate(possible)
    pairs = [_pair(gate, certain.get(gate), possible[gate], fitting[gate], evidence) for gate in gates]
    maybe = {output for gate in gates if gate not in certain for output in possible[gate]}
    left = [output for output in outputs if output not in certain.values() and output not in maybe]
    return (*pairs, *(Pair(output, None, "no gate has input state that fits") for output in left))


def _eliminate(possible: dict[End, list[End]]) -> dict[End, End]:
    """Return gates that only one output is left for; outputs found first are taken away from the others."""
    certain: dict[End, End] = {}
    while True:
        taken = set(certain.values())
        found = {
            gate: free[0]
            for gate, outputs in possible.items()
            if gate not in certain and len(free := [output for output in outputs if output not in taken]) == 1
        }
        # Two gates that want the same output: neither is certain.
        wanted = list(found.values())
        new = {gate: output for gate, output in found.items() if wanted.count(output) == 1}
        if not new:
            return certain
        certain |= new


def _pair(
    gate: End,
    output: End | None,
    possible: list[End],
    fitting: list[End],
    evidence: dict[tuple[End, End], Evidence],
) -> Pair:
    if output is None:
        reason = "several outputs fit" if possible else "no output state fits"
        return Pair(None, gate, reason, tuple(possible))
    seen = evidence.get((output, gate))
    if seen is not None and seen.straddling:
        return Pair(
            output, gate, f"in {seen.straddling} channels a record begins in one's state and ends in the other's"
        )
    if len(fitting) == 1:
        return Pair(output, gate, "it is the only output state that fits")
    return Pair(
        output, gate, "guessed: the other output states that fit belong to other gates, or their bytes do not join"
    )
