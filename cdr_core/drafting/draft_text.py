"""A draft as YAML with its comments, or as the plain document that a spec is."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any, Final

import yaml

from cdr_core.drafting.draft import Draft, DraftedExchange
from cdr_core.planning.job_spec import Partitioner
from cdr_core.planning.subtask_mapping import UNMOVABLE

_WIDTH: Final = 110
_UNTITLED: Final = "draft"


def as_document(draft: Draft) -> dict[str, Any]:
    """Return the spec without comments."""
    exchanges = [dict(_fields(exchange)) for exchange in draft.exchanges]
    return {"job": draft.job or _UNTITLED, "exchanges": exchanges}


def as_yaml(draft: Draft) -> str:
    """Return the spec as a file to be edited."""
    lines = list(_comment(draft.notes, ""))
    lines.append(f"job: {_inline(draft.job or _UNTITLED)}")
    lines.append("exchanges:")
    for exchange in draft.exchanges:
        lines += _comment(exchange.comments, "  ")
        for number, (name, value) in enumerate(_fields(exchange)):
            lines.append(f"  {'-' if number == 0 else ' '} {name}: {_inline(value)}")
    return "\n".join(lines) + "\n"


def _fields(exchange: DraftedExchange) -> Iterable[tuple[str, Any]]:
    yield "name", exchange.name
    yield "upstream", {"operator": exchange.upstream, "partition": exchange.partition}
    yield "downstream", {"operator": exchange.downstream, "gate": exchange.gate}
    yield "partitioner", str(exchange.partitioner)
    if exchange.partitioner not in UNMOVABLE:
        yield "record", "OPAQUE"
    if exchange.partitioner is Partitioner.HASH:
        yield "key", []


def _comment(texts: Iterable[str], indent: str) -> Iterable[str]:
    for text in texts:
        yield from textwrap.wrap(text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}#   ")


def _inline(value: Any) -> str:
    """Return the value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=2**20, allow_unicode=True)
    return text.removesuffix("...\n").strip()
