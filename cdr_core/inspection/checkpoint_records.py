"""The part of ``cdr inspect`` that reads payload: elements and records per exchange of a spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import KIND_NAMES, RECORDS
from cdr_core.channels.batch_scan import scan_channels
from cdr_core.channels.channel_batch import BatchSource
from cdr_core.channels.channel_scan import scan_channel
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.flink.metadata import Side
from cdr_core.inspection.checkpoint_view import LARGEST
from cdr_core.inspection.rescale_blockers import refusals
from cdr_core.inspection.rows import Rows, Table
from cdr_core.planning.job_spec import parse_spec, read_spec
from cdr_core.planning.parallelism import SAME, parse_parallelism
from cdr_core.planning.plan import Plan, make_plan

UNSPLIT = 1 << 62
"""A split size that no channel reaches."""

Longs = npt.NDArray[np.int64]


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
        }
        for e in plan.exchanges
    ]
    scanned = scan_channels(
        plan, BatchSource(plan), np.arange(len(plan.channels)), lambda number: scan_channel(plan, number)
    )
    of, ledger, size = scanned.splits["split_channel"], scanned.ledger, scanned.channels["size"]
    records = np.zeros(len(plan.channels), np.int64)
    np.add.at(records, of[ledger.lines], ledger.sums[:, RECORDS].astype(np.int64))
    for number, exchange in enumerate(exchanges):
        members = np.flatnonzero(plan.channels.exchange == number)
        exchange["records"], exchange["bytes"] = int(records[members].sum()), int(size[members].sum())
        other = plan.channels.exchange[of[ledger.other_lines]] == number
        exchange["others"] = {
            KIND_NAMES[kind]: int(ledger.other_counts[other & (ledger.other_kinds == kind)].sum())
            for kind in np.unique(ledger.other_kinds[other]).tolist()
        }
        ends = {"up": plan.channels.up[members], "down": plan.channels.down[members]}
        rows = Rows(Table({**ends, "records": records[members], "bytes": size[members]}, len(members)))
        largest = np.argsort(-size[members], kind="stable")[:LARGEST]
        exchange["channels"], exchange["largest"] = rows, [rows[place] for place in largest.tolist()]
    value["exchanges"] = exchanges
    inputs = scanned.channels["input_size"]
    held = {Side.INPUT: inputs, Side.OUTPUT: size - inputs}
    _correct(checkpoint, plan, value["operators"], held)
    total = sum(exchange["records"] for exchange in exchanges)
    others = sum(sum(exchange["others"].values()) for exchange in exchanges)
    value["totals"] |= {"records": total, "elements": total + others}


def _correct(checkpoint: Checkpoint, plan: Plan, operators: list[dict[str, Any]], held: Mapping[Side, Longs]) -> None:
    """Replace the sizes that handles announce by those that were read; ``held`` has them by channel of the plan.

    A channel that no exchange covers was not read: it is here only if its handle announces empty chunks.
    """
    tables = {operator["id"]: dict(zip(Side, operator["channels"].tables, strict=True)) for operator in operators}
    for number, exchange in enumerate(plan.exchanges):
        members = np.flatnonzero(plan.channels.exchange == number)
        for side in Side:
            operator, _ = exchange.end(side)
            columns = checkpoint.columns(operator, side)
            rows = exchange.rows_of(columns, plan.channels.up[members], plan.channels.down[members])
            tables[operator][side].numbers("bytes")[rows[rows >= 0]] = held[side][members][rows >= 0]
