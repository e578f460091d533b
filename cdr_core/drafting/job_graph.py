"""Flink's plan of a job, as its REST API returns it at ``/jobs/:id/plan``."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cdr_core.errors import SpecRefused
from cdr_core.flink.metadata import OperatorState
from cdr_core.planning.job_spec import Partitioner

_PARTS: Final = re.compile(r"->|<br\s*/?>|\n")
_BRANCH: Final = re.compile(r"^[\s:|]*(?:[+:]-\s*)?")
"""Matches the tree drawing of a chain in front of an operator's name."""
_SQL_NAME: Final = re.compile(r"(?P<name>\w+)\[(?P<number>\d+)\]")


@dataclass(frozen=True, slots=True)
class Edge:
    """An input of a vertex: its gate is the input's number. ``strategy`` is the plan's word for the partitioner."""

    source: str
    gate: int
    strategy: str

    @property
    def partitioner(self) -> Partitioner | None:
        """Return the partitioner; ``None`` where the plan's word is unknown to cdr."""
        word = self.strategy.strip().lower()
        return Partitioner(word) if word in set(Partitioner) else None


@dataclass(frozen=True, slots=True)
class Vertex:
    """A chain of operators that run as one task; its id is the id of the first of them."""

    identifier: str
    parallelism: int
    chain: tuple[str, ...]
    inputs: tuple[Edge, ...]

    def names(self, operator: OperatorState) -> bool:
        """Return whether the operator is one of the chain, by id or by name."""
        return operator.operator_id == self.identifier or any(_is_named(operator, part) for part in self.chain)

    def ends_with(self, operator: OperatorState) -> bool:
        """Return whether the operator is the last of the chain, as far as its description shows."""
        if len(self.chain) < 2:
            return operator.operator_id == self.identifier
        return _is_named(operator, self.chain[-1])


@dataclass(frozen=True, slots=True)
class JobGraph:
    """All vertices by id, and the job's name."""

    name: str
    vertices: Mapping[str, Vertex]


def parse_job_graph(text: str) -> JobGraph:
    """Parse a plan, or refuse a text that is none; the answer of ``/jobs/:id`` contains one too."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise SpecRefused(f"the plan is not JSON: {error.msg}", hint=_HINT) from None
    plan = document.get("plan", document) if isinstance(document, dict) else None
    nodes = plan.get("nodes") if isinstance(plan, dict) else None
    if not isinstance(plan, dict) or not isinstance(nodes, list):
        raise SpecRefused("the plan has no nodes", hint=_HINT)
    vertices = [_vertex(node) for node in nodes]
    return JobGraph(str(plan.get("name") or ""), {vertex.identifier: vertex for vertex in vertices})


_HINT: Final = "save the answer of /jobs/JOB/plan of Flink's REST API"


def _vertex(node: Any) -> Vertex:
    if not isinstance(node, dict) or "id" not in node:
        raise SpecRefused("a node of the plan has no id", hint=_HINT)
    try:
        inputs = tuple(
            Edge(str(entry["id"]), int(entry.get("num", number)), str(entry.get("ship_strategy", "")))
            for number, entry in enumerate(node.get("inputs") or ())
        )
        parallelism = int(node.get("parallelism", 0))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise SpecRefused(f"node {node['id']} of the plan has inputs that cannot be read", hint=_HINT) from None
    return Vertex(str(node["id"]), parallelism, _chain(str(node.get("description") or "")), inputs)


def _chain(description: str) -> tuple[str, ...]:
    """Return the names in a vertex's description, first to last; Flink escapes it for web pages."""
    parts = (_BRANCH.sub("", part).strip() for part in _PARTS.split(html.unescape(description)))
    return tuple(part for part in parts if part)


def _is_named(operator: OperatorState, part: str) -> bool:
    """Return whether the name is a SQL operator of the chain: ``Calc[3]`` in the metadata is ``[3]:Calc(…)`` in a
    description.
    """
    names = {name for name in (operator.name, operator.uid) if name}
    if part in names:
        return True
    matches = (_SQL_NAME.fullmatch(name) for name in names)
    return any(part.startswith(f"[{match['number']}]:{match['name']}") for match in matches if match)
