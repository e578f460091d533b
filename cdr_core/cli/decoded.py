"""The part of ``cdr inspect`` that reads payload: elements and records per exchange of a spec."""

from __future__ import annotations

from typing import Any

from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.phases.read import scan_channel
from cdr_core.rescale.parallelism import SAME, parse_parallelism
from cdr_core.rescale.plan import make_plan
from cdr_core.rescale.spec import parse_spec, read_spec

UNSPLIT = 1 << 62
"""Nothing is split here."""


def add_decoded(value: dict[str, Any], checkpoint: Checkpoint, spec: str) -> None:
    """Add the spec's exchanges with their counts, and the totals, to a checkpoint's description."""
    plan = make_plan(checkpoint, parse_spec(read_spec(spec)), parse_parallelism(SAME), UNSPLIT)
    exchanges: list[dict[str, Any]] = [
        {
            "name": e.name,
            "gate": e.gate,
            "partitioner": e.partitioner,
            "records": 0,
            "bytes": 0,
            "others": {},
            "channels": [],
        }
        for e in plan.exchanges
    ]
    for number, channel in enumerate(plan.channels):
        scanned = scan_channel(plan, number)
        exchange, entry = exchanges[channel.exchange], scanned["entry"]
        exchange["records"] += entry["records"]
        exchange["bytes"] += scanned["size"]
        for kind, count in entry["others"].items():
            exchange["others"][kind] = exchange["others"].get(kind, 0) + count
        exchange["channels"].append(
            {"up": channel.up, "down": channel.down, "records": entry["records"], "bytes": scanned["size"]}
        )
    value["exchanges"] = exchanges
    records = sum(exchange["records"] for exchange in exchanges)
    others = sum(sum(exchange["others"].values()) for exchange in exchanges)
    value["totals"] |= {"records": records, "elements": records + others}
