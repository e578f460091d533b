"""Blockers of another parallelism: from the metadata alone, and with a spec the refusals of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import numpy as np

from cdr_core.addresses import SCHEMES
from cdr_core.channels.remote_state import state_files
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.flink.metadata import FinishedSubtask, OperatorState
from cdr_core.planning.exchange_binding import announced_sizes, bind
from cdr_core.planning.exchange_binding import refusals as plan_refusals
from cdr_core.planning.job_spec import Exchange, JobSpec


class Kind(StrEnum):
    """The kind of a blocker."""

    NEEDS_SPEC = "needs-spec"
    FINISHED = "finished"
    MAX_PARALLELISM = "max-parallelism"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"


def blocks_of(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Return the blockers that the metadata shows."""
    found: list[dict[str, Any]] = []
    for operator in checkpoint.metadata.operators:
        found += _finished(operator)
        found += _at_limit(operator)
        found += _unreachable(checkpoint, operator)
    return found


def undescribed(operators: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return in-flight data of described operators, which needs a spec."""
    found = []
    for operator in operators:
        label = operator["uid"] or operator["name"] or operator["id"]
        for index, table in zip(("gate", "partition"), operator["channels"].tables, strict=True):
            for number in np.unique(table.numbers(index)).tolist():
                what = f"{label} has in-flight data on {index} {number}, which only a job spec can explain"
                found.append({"kind": str(Kind.NEEDS_SPEC), "operator": label, "what": what, "hint": "give --spec"})
    return found


def refusals(checkpoint: Checkpoint, spec: JobSpec) -> list[dict[str, Any]]:
    """Return a plan's refusals, exchange by exchange, when either end's parallelism changes by one."""
    found: dict[str, dict[str, Any]] = {}
    for exchange in spec.exchanges:
        for parallelism in _changes(checkpoint, exchange):
            planned = bind(checkpoint, exchange, parallelism)
            sizes = announced_sizes(checkpoint, planned)
            for error in plan_refusals(checkpoint, planned, sizes, exchange.key):
                block = {"kind": str(Kind.REFUSED), "exchange": exchange.name, "what": error.what, "hint": error.hint}
                found.setdefault(error.what, block)
    return list(found.values())


def _changes(checkpoint: Checkpoint, exchange: Exchange) -> Iterator[dict[str, int]]:
    """Yield parallelism by operator id with one end changed; an operator at its only possible parallelism stays."""
    same = {operator.operator_id: operator.parallelism for operator in checkpoint.metadata.operators}
    for name in dict.fromkeys((exchange.downstream, exchange.upstream)):
        operator = checkpoint.operator(name)
        other = operator.parallelism - 1 if operator.parallelism > 1 else 2
        if other <= operator.max_parallelism:
            yield {**same, operator.operator_id: other}


def _finished(operator: OperatorState) -> Iterator[dict[str, Any]]:
    ended = sum(isinstance(subtask, FinishedSubtask) for subtask in operator.subtasks)
    if operator.finished or ended:
        how_many = "all" if operator.finished else f"{ended} of {operator.parallelism}"
        yield _block(
            Kind.FINISHED,
            operator,
            f"{operator.label} had finished in {how_many} of its subtasks; in-flight data can be moved nevertheless",
            "nothing is to be done: Flink restores such an operator at any parallelism",
        )


def _at_limit(operator: OperatorState) -> Iterator[dict[str, Any]]:
    if operator.parallelism >= operator.max_parallelism:
        yield _block(
            Kind.MAX_PARALLELISM,
            operator,
            f"{operator.label} runs at its max parallelism of {operator.max_parallelism}: it can shrink, not grow",
            "choose a smaller parallelism",
        )


def _unreachable(checkpoint: Checkpoint, operator: OperatorState) -> Iterator[dict[str, Any]]:
    schemes: dict[str, str] = {}
    for uri in state_files(checkpoint, operator):
        scheme, separator, _ = uri.partition("://")
        if separator:
            schemes.setdefault(scheme, uri)
    for scheme, uri in schemes.items():
        if scheme not in SCHEMES:
            what = f"{operator.label} has in-flight data on {scheme}://, which cdr cannot reach ({uri})"
            yield _block(Kind.UNREACHABLE, operator, what, "copy the checkpoint to a local disk or s3://")


def _block(kind: Kind, operator: OperatorState, what: str, hint: str) -> dict[str, Any]:
    return {"kind": str(kind), "operator": operator.label, "what": what, "hint": hint}
