"""The contents of a checkpoint, without reading its payload; with a spec also the decoded counts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdr_core.flink.checkpoint import Checkpoint
    from cdr_core.flink.metadata import OperatorState, Side
    from cdr_core.inspection.rows import Table

LARGEST = 5
"""Channels that are named one by one."""


def inspect_checkpoint(path: str, spec: str = "") -> dict[str, Any]:
    """Return one checkpoint as a value."""
    from cdr_core.channels.channel_source import open_checkpoint
    from cdr_core.inspection.rescale_blockers import blocks_of, undescribed

    checkpoint = open_checkpoint(path)
    operators = [_operator(checkpoint, number) for number in range(len(checkpoint.metadata.operators))]
    value: dict[str, Any] = {
        "path": checkpoint.address,
        "version": checkpoint.metadata.version,
        "checkpoint_id": checkpoint.metadata.checkpoint_id,
        **_age(checkpoint),
        "operators": operators,
        "exchanges": [],
        "largest": [],
        "blocks": [*([] if spec else undescribed(operators)), *blocks_of(checkpoint)],
        "totals": {},
    }
    if spec:
        from cdr_core.inspection.checkpoint_records import add_decoded

        add_decoded(value, checkpoint, spec)
    _sum_up(value)
    return value


def _sum_up(value: dict[str, Any]) -> None:
    """Add totals and the largest channels; bytes unknown for one channel are unknown in total."""
    tables = [
        (operator["uid"] or operator["name"] or operator["id"], table)
        for operator in value["operators"]
        for table in operator["channels"].tables
    ]
    held = [table.numbers("bytes") for _, table in tables]
    largest = [
        {"operator": label, **next(table.rows(row, row + 1))}
        for (label, table), sizes in zip(tables, held, strict=True)
        for row in (-sizes).argsort(kind="stable")[:LARGEST].tolist()
        if sizes[row] >= 0
    ]
    value["largest"] = sorted(largest, key=lambda channel: -channel["bytes"])[:LARGEST]
    value["totals"] |= {
        "bytes": None if any((sizes < 0).any() for sizes in held) else sum(int(sizes.sum()) for sizes in held),
        "buffers": sum(int(table.numbers("buffers").sum()) for _, table in tables),
    }


def _age(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the checkpoint's age by the time of its `_metadata`, which is written last; Flink stores no time itself.

    A copy has the time of copying. A clock behind the storage's never makes the age negative.
    """
    from cdr_core.storage import storage_for

    uri = checkpoint.metadata_address
    modified = storage_for(uri).stat(uri).modified
    age = max((datetime.now(UTC) - modified).total_seconds(), 0.0)
    return {"modified": modified.isoformat(timespec="seconds"), "age_s": round(age, 1)}


def _operator(checkpoint: Checkpoint, number: int) -> dict[str, Any]:
    from cdr_core.flink.metadata import Side
    from cdr_core.inspection.rows import Rows

    operator = checkpoint.metadata.operators[number]
    return {
        "id": operator.operator_id,
        "uid": operator.uid,
        "name": operator.name,
        "parallelism": operator.parallelism,
        "max_parallelism": operator.max_parallelism,
        "channels": Rows(*(_channels(checkpoint, operator, side) for side in (Side.INPUT, Side.OUTPUT))),
    }


def _channels(checkpoint: Checkpoint, operator: OperatorState, side: Side) -> Table:
    from cdr_core.inspection.rows import Table
    from cdr_core.planning.handle_sizes import payload_sizes

    columns = checkpoint.columns(operator, side)
    fields: dict[str, Any] = {
        "side": str(side),
        "subtask": columns.subtask,
        "gate" if str(side) == "input" else "partition": columns.a,
        "channel": columns.b,
        "buffers": columns.counts,
        "bytes": payload_sizes(checkpoint, columns),
    }
    return Table(fields, len(columns))
