"""``cdr inspect``: what is in a checkpoint, without reading its payload; with a spec also the decoded counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdr_core.cli.shared import JsonFlag, print_json
from cdr_core.errors import CdrError

if TYPE_CHECKING:
    from cdr_core.flink.checkpoint import Checkpoint

BAR = 30


def inspect(
    checkpoints: Annotated[list[str], typer.Argument(metavar="CHECKPOINT…", help="Checkpoint directories.")],
    spec: Annotated[str, typer.Option("--spec", help="A job spec, to count elements and records.")] = "",
    as_json: JsonFlag = False,
) -> int:
    """What is in a checkpoint: version, operators, channel state, sizes, skew."""
    worst = 0
    for path in checkpoints:
        try:
            value = describe(path, spec)
        except CdrError as error:
            worst = error.exit_code
            value = {"path": path, "error": str(error)}
        if as_json:
            print_json(value)
        else:
            _show(value)
    return worst


def describe(path: str, spec: str) -> dict[str, Any]:
    """One checkpoint as a value."""
    from cdr_core.rescale.source import open_checkpoint

    checkpoint = open_checkpoint(path)
    operators = [_operator(checkpoint, number) for number in range(len(checkpoint.metadata.operators))]
    channels = [channel for operator in operators for channel in operator["channels"]]
    value: dict[str, Any] = {
        "path": checkpoint.directory,
        "version": checkpoint.metadata.version,
        "checkpoint_id": checkpoint.metadata.checkpoint_id,
        "operators": operators,
        "exchanges": [],
        "totals": {
            "bytes": sum(channel["bytes"] for channel in channels),
            "buffers": sum(channel["buffers"] for channel in channels),
        },
    }
    if spec:
        from cdr_core.cli.decoded import add_decoded

        add_decoded(value, checkpoint, spec)
    return value


def _operator(checkpoint: Checkpoint, number: int) -> dict[str, Any]:
    from cdr_core.flink.metadata import Side
    from cdr_core.rescale.source import payload_size

    operator = checkpoint.metadata.operators[number]
    return {
        "id": operator.operator_id,
        "uid": operator.uid,
        "name": operator.name,
        "parallelism": operator.parallelism,
        "max_parallelism": operator.max_parallelism,
        "channels": [
            {
                "side": str(side),
                "subtask": at.subtask,
                "gate" if side is Side.INPUT else "partition": at.a,
                "channel": at.b,
                "buffers": len(piece.offsets),
                "bytes": payload_size(checkpoint, piece),
            }
            for side in (Side.INPUT, Side.OUTPUT)
            for at, piece in checkpoint.channels(operator, side).items()
        ],
    }


def _show(value: dict[str, Any]) -> None:
    if "error" in value:
        typer.echo(f"{value['path']}: {value['error']}", err=True)
        return
    totals = value["totals"]
    typer.echo(f"{value['path']}")
    typer.echo(
        f"  checkpoint {value['checkpoint_id']}, metadata version {value['version']}, "
        f"{totals['bytes']:,} bytes in flight in {totals['buffers']:,} buffers"
    )
    for operator in value["operators"]:
        name = operator["uid"] or operator["name"] or operator["id"]
        typer.echo(f"  {name}: parallelism {operator['parallelism']} of at most {operator['max_parallelism']}")
        _show_subtasks(operator["channels"])
    for exchange in value["exchanges"]:
        others = ", ".join(f"{count:,} {kind}" for kind, count in exchange["others"].items())
        typer.echo(f"  exchange {exchange['name']}: {exchange['records']:,} records{', ' if others else ''}{others}")


def _show_subtasks(channels: list[dict[str, Any]]) -> None:
    """Bytes in flight per side and subtask as bars: skew is what people look for first."""
    loads: dict[tuple[str, int], int] = {}
    for channel in channels:
        key = (channel["side"], channel["subtask"])
        loads[key] = loads.get(key, 0) + channel["bytes"]
    largest = max(loads.values(), default=0)
    for (side, subtask), size in sorted(loads.items()):
        bar = "█" * round(BAR * size / largest) if largest else ""
        typer.echo(f"    {side:<6} {subtask:>4}  {bar:<{BAR}}  {size:,} bytes")
