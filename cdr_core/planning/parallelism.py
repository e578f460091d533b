"""The requested parallelism: ``2``, ``slow=2,gen=3`` or ``same``, applied to the operators of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from cdr_core.errors import CdrError, PlanRefused, SpecRefused
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.flink.keys import MOST_KEY_GROUPS
from cdr_core.flink.metadata import OperatorState
from cdr_core.planning.job_spec import JobSpec

SAME = "same"


@dataclass(frozen=True, slots=True)
class RequestedParallelism:
    """The user's request: one number for all exchanged operators, numbers by operator name, or neither."""

    everywhere: int | None
    by_operator: tuple[tuple[str, int], ...]

    @property
    def text(self) -> str:
        """Return the canonical text of the request."""
        if self.everywhere is not None:
            return str(self.everywhere)
        return ",".join(f"{name}={number}" for name, number in sorted(self.by_operator)) or SAME


def parse_parallelism(text: str) -> RequestedParallelism:
    """Parse the request, or refuse it with the part that is no parallelism."""
    stripped = text.strip()
    if stripped == SAME:
        return RequestedParallelism(None, ())
    if "=" not in stripped:
        return RequestedParallelism(_parse_number(stripped, text), ())
    pairs = []
    for part in stripped.split(","):
        name, _, number = part.rpartition("=")
        if not name.strip():
            raise PlanRefused(
                f"parallelism {text!r}: {part!r} is not OPERATOR=NUMBER",
                hint="write slow=2,gen=3; of an operator whose name has a comma, use its id",
            )
        pairs.append((name.strip(), _parse_number(number, text)))
    if len({name for name, _ in pairs}) != len(pairs):
        raise PlanRefused(f"parallelism {text!r} names an operator twice", hint="name each once")
    return RequestedParallelism(None, tuple(pairs))


def new_parallelism(checkpoint: Checkpoint, spec: JobSpec, requested: RequestedParallelism) -> Mapping[str, int]:
    """Return the result of :func:`examine_parallelism`; raise its first refusal."""
    result, refusals = examine_parallelism(checkpoint, spec, requested)
    if refusals:
        raise refusals[0]
    return result


def examine_parallelism(
    checkpoint: Checkpoint, spec: JobSpec, requested: RequestedParallelism
) -> tuple[Mapping[str, int], tuple[CdrError, ...]]:
    """Return new parallelism by operator id, for every operator of the checkpoint, and what is wrong with it.

    One number means every operator whose parallelism equals that of an operator on a listed exchange, because chained
    operators share theirs. Beyond an operator's max parallelism there are no key groups left to own: refused.
    """
    operators = checkpoint.metadata.operators
    result = {operator.operator_id: operator.parallelism for operator in operators}
    refusals: list[CdrError] = []
    if requested.everywhere is not None:
        exchanged = {operator.parallelism for operator in _ends(checkpoint, spec)}
        result |= {o.operator_id: requested.everywhere for o in operators if o.parallelism in exchanged}
    named: dict[str, tuple[str, int]] = {}
    for name, number in requested.by_operator:
        try:
            operator = checkpoint.operator(name)
        except SpecRefused as error:
            refusals.append(error)
            continue
        first, before = named.setdefault(operator.operator_id, (name, number))
        if before != number:
            refusals.append(PlanRefused(f"{first} and {name} are one operator, requested at {before} and at {number}"))
        result[operator.operator_id] = number
    refusals += [
        PlanRefused(
            f"operator {operator.label} cannot run at parallelism {result[operator.operator_id]}: "
            f"its max parallelism is {operator.max_parallelism}",
            hint="choose a smaller one",
        )
        for operator in operators
        if result[operator.operator_id] > operator.max_parallelism
    ]
    return result, tuple(refusals)


def _ends(checkpoint: Checkpoint, spec: JobSpec) -> Iterator[OperatorState]:
    """Yield operators on the exchanges; a name that none has is refused where its exchange is bound."""
    for name in {name for exchange in spec.exchanges for name in (exchange.upstream, exchange.downstream)}:
        with suppress(SpecRefused):
            yield checkpoint.operator(name)


def _parse_number(text: str, whole: str) -> int:
    if not (text.strip().isascii() and text.strip().isdecimal()) or int(text) < 1 or int(text) > MOST_KEY_GROUPS:
        raise PlanRefused(
            f"parallelism {whole!r}: {text.strip()!r} is not a number from 1 to {MOST_KEY_GROUPS}",
            hint="write 2, slow=2,gen=3 or same",
        )
    return int(text)
