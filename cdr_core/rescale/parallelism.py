"""The wished parallelism: ``2``, ``slow=2,gen=3`` or ``same``, applied to the operators of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cdr_core.errors import PlanRefused
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.rescale.spec import JobSpec

SAME = "same"


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for: one number for all exchanged operators, numbers by operator name, or neither."""

    everywhere: int | None
    by_operator: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        """The one spelling of this wish."""
        if self.everywhere is not None:
            return str(self.everywhere)
        return ",".join(f"{name}={number}" for name, number in sorted(self.by_operator)) or SAME


def parse_parallelism(text: str) -> Wish:
    """Read the wish, or refuse it with the part that is no parallelism."""
    stripped = text.strip()
    if stripped == SAME:
        return Wish(None, ())
    if "=" not in stripped:
        return Wish(_parse_number(stripped, text), ())
    pairs = []
    for part in stripped.split(","):
        name, _, number = part.rpartition("=")
        if not name.strip():
            raise PlanRefused(f"parallelism {text!r}: {part!r} is not OPERATOR=NUMBER", hint="write slow=2,gen=3")
        pairs.append((name.strip(), _parse_number(number, text)))
    if len({name for name, _ in pairs}) != len(pairs):
        raise PlanRefused(f"parallelism {text!r} names an operator twice", hint="name each once")
    return Wish(None, tuple(pairs))


def new_parallelism(checkpoint: Checkpoint, spec: JobSpec, wish: Wish) -> Mapping[str, int]:
    """New parallelism by operator id, for every operator of the checkpoint.

    One number means every operator whose parallelism equals that of an operator on a listed exchange, because chained
    operators share theirs. Beyond an operator's max parallelism there are no key groups left to own: refused.
    """
    result = {operator.operator_id: operator.parallelism for operator in checkpoint.metadata.operators}
    if wish.everywhere is not None:
        ends = [checkpoint.operator(name) for e in spec.exchanges for name in (e.upstream, e.downstream)]
        exchanged = {operator.parallelism for operator in ends}
        for operator in checkpoint.metadata.operators:
            if operator.parallelism in exchanged:
                result[operator.operator_id] = wish.everywhere
    for name, number in wish.by_operator:
        result[checkpoint.operator(name).operator_id] = number
    for operator in checkpoint.metadata.operators:
        if result[operator.operator_id] > operator.max_parallelism:
            raise PlanRefused(
                f"operator {operator.label} cannot run at parallelism "
                f"{result[operator.operator_id]}: its max parallelism is {operator.max_parallelism}",
                hint="choose a smaller one",
            )
    return result


def _parse_number(text: str, whole: str) -> int:
    if not (text.strip().isascii() and text.strip().isdecimal()) or int(text) < 1 or int(text) > 32768:
        raise PlanRefused(
            f"parallelism {whole!r}: {text.strip()!r} is not a number from 1 to 32768",
            hint="write 2, slow=2,gen=3 or same",
        )
    return int(text)
