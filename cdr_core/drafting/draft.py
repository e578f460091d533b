"""From ends, pairs and a plan to the exchanges of a job spec, each with its known and its guessed parts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count
from typing import Final

from cdr_core.drafting.ends import End, find_ends, spell
from cdr_core.drafting.framing import compare
from cdr_core.drafting.job_graph import Edge, JobGraph, Vertex
from cdr_core.drafting.pairing import Pair, pair_ends
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.flink.metadata import OperatorState, Side, SubtaskState
from cdr_core.planning.job_spec import Partitioner
from cdr_core.planning.subtask_mapping import UNMOVABLE

FILL_IN: Final = "FILL_IN"
"""Placeholder for a missing operator name; a spec with it can be read, and is refused by this name when used."""

_OPAQUE: Final = "record: the type is not in the checkpoint; OPAQUE records move undecoded, describe them to see fields"
_GUESSED: Final = "partition: guessed"
_SHOWN: Final = 20


@dataclass(frozen=True, slots=True)
class DraftedExchange:
    """An exchange of the draft; ``comments`` name the source of each part of it."""

    name: str
    upstream: str
    partition: int
    downstream: str
    gate: int
    partitioner: Partitioner
    comments: tuple[str, ...]
    partition_guessed: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """A spec that parses. ``notes`` are about all of it."""

    job: str
    exchanges: tuple[DraftedExchange, ...]
    notes: tuple[str, ...]


def draft_spec(checkpoint: Checkpoint, graph: JobGraph | None = None) -> Draft:
    """Return a draft from the checkpoint and, if given, the job's plan.

    Ends are paired only where no other pair fits; otherwise the name is FILL_IN, with the choices in a comment. A
    checkpoint without in-flight data is drafted from the plan, or as one exchange to be filled in.
    """
    gates, outputs = find_ends(checkpoint, Side.INPUT), find_ends(checkpoint, Side.OUTPUT)
    notes = [] if gates or outputs else ["This checkpoint holds no in-flight data: there is nothing to recover."]
    drafted: list[DraftedExchange] = []
    if graph is not None:
        for vertex in graph.vertices.values():
            for edge in vertex.inputs:
                found = _from_edge(checkpoint, graph, vertex, edge, gates, outputs)
                if isinstance(found, str):
                    notes.append(found)
                    continue
                drafted.append(found)
                gates = [end for end in gates if not _is_end(checkpoint, end, found.downstream, found.gate)]
                outputs = [end for end in outputs if not _is_end(checkpoint, end, found.upstream, found.partition)]
        if gates or outputs:
            notes.append(
                "Some in-flight data fits no input of the plan; its exchanges are guessed from the checkpoint."
            )
    pairs = pair_ends(gates, outputs, partial(compare, checkpoint))
    drafted += [_from_pair(checkpoint, pair) for pair in pairs]
    if not drafted:
        notes.append(f"Its operators: {_operators(checkpoint)}.")
        drafted = [_empty_exchange()]
    return Draft(graph.name if graph is not None else "", _settled(drafted), tuple(notes))


def _from_pair(checkpoint: Checkpoint, pair: Pair) -> DraftedExchange:
    comments = []
    ends = [end for end in (pair.output, pair.gate) if end is not None]
    if pair.output is not None and pair.gate is not None:
        comments.append(f"paired: {pair.reason}")
    elif pair.gate is not None:
        choices = ", ".join(f"{spell(checkpoint, end.operator)} partition {end.index}" for end in pair.candidates)
        choices = choices or _operators(checkpoint)
        comments.append(f"upstream: {pair.reason}; fill in one of {choices}")
    else:
        comments.append(f"downstream: {pair.reason}; fill in one of {_operators(checkpoint)}")
    partitioner, why = _guess_partitioner(pair.gate, ends)
    return DraftedExchange(
        "",
        spell(checkpoint, pair.output.operator) if pair.output else FILL_IN,
        pair.output.index if pair.output else 0,
        spell(checkpoint, pair.gate.operator) if pair.gate else FILL_IN,
        pair.gate.index if pair.gate else 0,
        partitioner,
        (*comments, why, *_about_records(partitioner)),
    )


def _guess_partitioner(gate: End | None, ends: Sequence[End]) -> tuple[Partitioner, str]:
    if gate is not None and _is_keyed(gate.operator):
        return Partitioner.HASH, "partitioner: guessed, since the downstream operator has keyed state"
    downs = {down for end in ends for _, down in end.channels}
    if downs == {0} and gate is not None and gate.operator.parallelism > 1:
        return Partitioner.GLOBAL, "partitioner: guessed, since all records wait for subtask 0"
    return (
        Partitioner.REBALANCE,
        "partitioner: guessed, since the downstream operator has no keyed state; look it up in the job",
    )


def _is_keyed(operator: OperatorState) -> bool:
    states = (subtask for subtask in operator.subtasks if isinstance(subtask, SubtaskState))
    return any(state.managed_keyed is not None or state.raw_keyed is not None for state in states)


def _about_records(partitioner: Partitioner) -> Iterator[str]:
    yield _OPAQUE
    if partitioner is Partitioner.HASH:
        yield "key: fill in the fields of keyBy or GROUP BY; without them only the same parallelism can be recovered"


def _from_edge(
    checkpoint: Checkpoint, graph: JobGraph, vertex: Vertex, edge: Edge, gates: Sequence[End], outputs: Sequence[End]
) -> DraftedExchange | str:
    """Return the exchange of an input of the plan, or why there is none."""
    source = graph.vertices.get(edge.source)
    heads = [o for o in checkpoint.metadata.operators if o.operator_id == vertex.identifier]
    if source is None or not heads:
        return f"The plan's input {edge.gate} of {_title(vertex)} joins operators that are not in this checkpoint."
    gate = next((end for end in gates if end.operator is heads[0] and end.index == edge.gate), None)
    upstream, partition, comment = _upstream_of(checkpoint, source, gate, outputs)
    partitioner, comments = edge.partitioner, [comment]
    if partitioner is None:
        partitioner, why = _guess_partitioner(gate, [gate] if gate else [])
        comments.append(f"{why}; the plan has {edge.strategy or 'nothing'}")
    if gate is None:
        comments.append("no input state here in this checkpoint")
    if partitioner not in UNMOVABLE:
        comments += _about_records(partitioner)
    return DraftedExchange(
        "",
        upstream,
        partition,
        spell(checkpoint, heads[0]),
        edge.gate,
        partitioner,
        tuple(filter(None, comments)),
        partition_guessed=comment.startswith(_GUESSED),
    )


def _upstream_of(
    checkpoint: Checkpoint, source: Vertex, gate: End | None, outputs: Sequence[End]
) -> tuple[str, int, str]:
    """Return operator and partition that a vertex sends from; output state is at the last operator of its chain."""
    outputs_here = [
        end for end in outputs if source.names(end.operator) and end.operator.parallelism == source.parallelism
    ]
    if gate is not None:
        (pair, *_) = pair_ends([gate], outputs_here, partial(compare, checkpoint))
        if pair.output is not None:
            return spell(checkpoint, pair.output.operator), pair.output.index, ""
        if pair.candidates:
            first = pair.candidates[0]
            choices = ", ".join(str(end.index) for end in pair.candidates)
            return spell(checkpoint, first.operator), first.index, f"{_GUESSED}, one of {choices}"
    elif len(outputs_here) == 1:
        return spell(checkpoint, outputs_here[0].operator), outputs_here[0].index, ""
    tails = [operator for operator in checkpoint.metadata.operators if source.ends_with(operator)]
    if len(tails) == 1:
        return spell(checkpoint, tails[0]), 0, f"{_GUESSED}, since it has no output state in this checkpoint"
    return FILL_IN, 0, f"upstream: fill in the last operator of {_title(source)}"


def _is_end(checkpoint: Checkpoint, end: End, operator: str, index: int) -> bool:
    return spell(checkpoint, end.operator) == operator and end.index == index


def _title(vertex: Vertex) -> str:
    return " -> ".join(vertex.chain) or vertex.identifier


def _operators(checkpoint: Checkpoint) -> str:
    names = [spell(checkpoint, operator) for operator in checkpoint.metadata.operators]
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "") if names else "none"


def _empty_exchange() -> DraftedExchange:
    comment = "the checkpoint does not show how operators are joined; fill in both ends, or draft with --plan"
    return DraftedExchange("", FILL_IN, 0, FILL_IN, 0, Partitioner.HASH, (comment,))


def _settled(drafted: list[DraftedExchange]) -> tuple[DraftedExchange, ...]:
    """Return each with a unique name that fits a column of a table, and no two at one partition or one FILL_IN."""
    known = {(exchange.upstream, exchange.partition) for exchange in drafted if not exchange.partition_guessed}
    holes, names, settled = count(1), set[str](), []
    for exchange in drafted:
        partition = exchange.partition
        while exchange.partition_guessed and (exchange.upstream, partition) in known:
            partition += 1
        known.add((exchange.upstream, partition))
        name = "main" if len(drafted) == 1 else f"{_slug(exchange.upstream)}_to_{_slug(exchange.downstream)}"
        repeats = (f"{name}_{number}" for number in count(2))
        name = next(one for one in chain([name], repeats) if one not in names)
        names.add(name)
        upstream = f"{FILL_IN}_{next(holes)}" if exchange.upstream == FILL_IN else exchange.upstream
        downstream = f"{FILL_IN}_{next(holes)}" if exchange.downstream == FILL_IN else exchange.downstream
        settled.append(replace(exchange, name=name, upstream=upstream, downstream=downstream, partition=partition))
    return tuple(settled)


def _slug(name: str) -> str:
    return re.sub(r"\W+", "_", name).strip("_").lower() or "operator"
