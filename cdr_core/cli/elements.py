"""``cdr elements``: every in-flight element of a checkpoint, in channel order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdr_core.cli.common import JsonFlag, print_json
from cdr_core.errors import Refused

if TYPE_CHECKING:
    import pyarrow as pa

    from cdr_core.planning.plan import Plan

SHOWN = ("pos", "from_state", "kind", "ts", "key_group", "owner", "length", "row_kind")


def elements(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint's directory (chk-N).")],
    spec: Annotated[str, typer.Option("--spec", help="The job spec: a YAML file.")],
    exchange: Annotated[str, typer.Option("--exchange", help="Only this exchange.")] = "",
    parallelism: Annotated[str, typer.Option("--parallelism", help="Owners at 2, slow=2 or same.")] = "same",
    limit: Annotated[int, typer.Option("--limit", min=0, help="At most this many; 0 = all.")] = 0,
    replace_text: Annotated[
        bool, typer.Option("--replace-text", help="Show invalid text (half a surrogate pair) as U+FFFD.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print every in-flight element in channel order."""
    from cdr_core.channels.element_reader import OWNER, element_batches, element_schema

    plan = _plan(checkpoint, spec, parallelism)
    names = [planned.name for planned in plan.exchanges]
    if exchange and exchange not in names:
        raise Refused(f"the spec has no exchange {exchange!r}", hint=f"it has {', '.join(names)}")
    left = limit or None
    wanted = frozenset(element_schema(plan).names) - {"raw"} | {OWNER.name}
    for number, channel in enumerate(plan.channels):
        if exchange and plan.exchanges[channel.exchange].name != exchange:
            continue
        for batch in element_batches(plan, number, wanted, replace_text=replace_text):
            shown = batch if left is None else batch.slice(0, left)
            for line in _lines(plan, number, shown):
                print_json(line) if as_json else typer.echo(_as_text(line))
            if left is not None:
                left -= shown.num_rows
                if left == 0:
                    return


def _plan(checkpoint: str, spec: str, parallelism: str) -> Plan:
    from cdr_core.channels.channel_source import open_checkpoint
    from cdr_core.planning.job_spec import parse_spec, read_spec
    from cdr_core.planning.parallelism import parse_parallelism
    from cdr_core.planning.plan import make_plan

    requested, parsed = parse_parallelism(parallelism), parse_spec(read_spec(spec))
    return make_plan(open_checkpoint(checkpoint), parsed, requested, 1 << 62)


def _lines(plan: Plan, number: int, batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield lines one after another: those of a whole batch would take many times the batch's memory."""
    from cdr_core.flink.decode.render import json_fields

    channel = plan.channels[number]
    exchange = plan.exchanges[channel.exchange]
    columns = {name: batch.column(name).to_pylist() for name in SHOWN}
    fields = json_fields(batch.column(exchange.name))
    for i in range(batch.num_rows):
        is_record = columns["kind"][i] == "record"
        yield {
            "exchange": exchange.name,
            "gate": exchange.gate,
            "up": channel.up,
            "down": channel.down,
            "pos": columns["pos"][i],
            "from": columns["from_state"][i],
            "kind": columns["kind"][i],
            "ts": columns["ts"][i],
            "key_group": columns["key_group"][i],
            "owner": columns["owner"][i],
            "row_kind": columns["row_kind"][i],
            **({"fields": fields[i]} if is_record else {}),
            "length": columns["length"][i],
        }


def _as_text(line: dict[str, Any]) -> str:
    place = f"{line['exchange']} {line['up']}→{line['down']} #{line['pos']}"
    shown = ", ".join(f"{name}={str(value)[:40]}" for name, value in line.get("fields", {}).items())
    owner = f" → {line['owner']}" if line["owner"] is not None else ""
    return f"{place}{owner}  {line['kind']}  {'' if line['ts'] is None else line['ts']}  {shown}".rstrip()
