"""The part of ``cdr inspect`` that reads payload: elements and records per exchange of a spec."""

from __future__ import annotations

from typing import Any

from cdr_core.cli.blocks import refusals
from cdr_core.cli.inspect import LARGEST
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.flink.metadata import Side
from cdr_core.rescale.parallelism import SAME, parse_parallelism
from cdr_core.rescale.plan import Plan, make_plan
from cdr_core.rescale.scanning import scan_channel
from cdr_core.rescale.spec import parse_spec, read_spec

UNSPLIT = 1 << 62
"""Nothing is split here."""

Held = dict[tuple[str, str, int, int, int], int]
"""Bytes by operator id, side, subtask, gate or partition, channel."""


def add_decoded(value: dict[str, Any], checkpoint: Checkpoint, spec: str) -> None:
    """Add the spec's exchanges with their counts, what a plan would refuse, and the totals."""
    parsed = parse_spec(read_spec(spec))
    plan = make_plan(checkpoint, parsed, parse_parallelism(SAME), UNSPLIT)
    value["blocks"] += refusals(checkpoint, parsed)
    exchanges: list[dict[str, Any]] = [
        {
            "name": e.name,
            "upstream": checkpoint.operator(e.upstream).label,
            "downstream": checkpoint.operator(e.downstream).label,
            "gate": e.gate,
            "partitioner": e.partitioner,
            "records": 0,
            "bytes": 0,
            "others": {},
            "channels": [],
        }
        for e in plan.exchanges
    ]
    held: Held = {}
    for number, channel in enumerate(plan.channels):
        scanned = scan_channel(plan, number)
        _note(held, plan, number, scanned)
        exchange, entry = exchanges[channel.exchange], scanned["entry"]
        exchange["records"] += entry["records"]
        exchange["bytes"] += scanned["size"]
        for kind, count in entry["others"].items():
            exchange["others"][kind] = exchange["others"].get(kind, 0) + count
        exchange["channels"].append(
            {"up": channel.up, "down": channel.down, "records": entry["records"], "bytes": scanned["size"]}
        )
    for exchange in exchanges:
        exchange["largest"] = sorted(exchange["channels"], key=lambda channel: -channel["bytes"])[:LARGEST]
    value["exchanges"] = exchanges
    _correct(value["operators"], held)
    records = sum(exchange["records"] for exchange in exchanges)
    others = sum(sum(exchange["others"].values()) for exchange in exchanges)
    value["totals"] |= {"records": records, "elements": records + others}


def _note(held: Held, plan: Plan, number: int, scanned: dict[str, Any]) -> None:
    channel = plan.channels[number]
    exchange = plan.exchanges[channel.exchange]
    received, sent = scanned["input_size"], scanned["size"] - scanned["input_size"]
    held[exchange.downstream, str(Side.INPUT), channel.down, exchange.gate, channel.up] = received
    held[exchange.upstream, str(Side.OUTPUT), channel.up, exchange.partition, channel.down] = sent


def _correct(operators: list[dict[str, Any]], held: Held) -> None:
    """What was read is true; what a handle says of its size need not be.

    A channel that no exchange covers was not read: it is there only if its handle announces empty chunks.
    """
    for operator in operators:
        for channel in operator["channels"]:
            index = channel["gate"] if "gate" in channel else channel["partition"]
            place = (operator["id"], channel["side"], channel["subtask"], index, channel["channel"])
            channel["bytes"] = held.get(place, channel["bytes"])
