"""The job spec, read again, as far as comparing needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from cdr_core.errors import SpecRefused
from cdr_core.storage import storage_for


@dataclass(frozen=True, slots=True)
class Exchange:
    """Upstream operator and partition → downstream operator and gate."""

    name: str
    upstream: str
    partition: int
    downstream: str
    gate: int
    partitioner: str
    record: str
    key: tuple[str, ...]


def read_spec(spec: str) -> tuple[Exchange, ...]:
    """Read the exchanges from the text itself, or from the file it names."""
    inline = "\n" in spec or "exchanges:" in spec
    text = spec if inline else storage_for(spec).read(spec).decode("utf-8", "replace")
    try:
        document = yaml.safe_load(text)
        exchanges = tuple(_exchange(entry, number) for number, entry in enumerate(document["exchanges"]))
    except (yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise SpecRefused(f"the job spec cannot be read: {error!r}", hint="cdr spec drafts one") from None
    if len({exchange.name for exchange in exchanges}) != len(exchanges):
        raise SpecRefused("two exchanges of the job spec have one name", hint="correct it")
    return exchanges


def _exchange(entry: Mapping[str, Any], number: int) -> Exchange:
    upstream, downstream = entry["upstream"], entry["downstream"]
    return Exchange(
        name=str(entry.get("name") or f"exchange-{number}"),
        upstream=str(upstream["operator"]),
        partition=int(upstream.get("partition", 0)),
        downstream=str(downstream["operator"]),
        gate=int(downstream.get("gate", 0)),
        partitioner=str(entry["partitioner"]),
        record=str(entry.get("record", "OPAQUE")),
        key=tuple(str(field) for field in entry.get("key") or ()),
    )
