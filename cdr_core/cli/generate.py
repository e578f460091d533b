"""``cdr generate``: a checkpoint in Flink's format with in-flight records, no Flink needed."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdr_core.cli.common import JsonFlag, print_json
from cdr_core.errors import Refused

if TYPE_CHECKING:
    from cdr_core.planning.job_spec import JobSpec, Partitioner
    from cdr_core.synthetic import ExchangeShape, Generated, Spread

VERSIONS = (3, 6)


def generate(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="A directory or s3:// prefix that is new or empty.")],
    spec: Annotated[str, typer.Option("--spec", help="The job spec: a YAML file. Its operators are made up.")],
    parallelism: Annotated[str, typer.Option("--parallelism", help="Of every operator: 3; or by name: gen=4,slow=3.")],
    size: Annotated[str, typer.Option("--bytes", help="Payload in flight, about: 100MB, 1GiB.")],
    seed: Annotated[int, typer.Option("--seed", min=0, help="The same seed and options give the same bytes.")] = 7,
    upstream: Annotated[
        int, typer.Option("--upstream-parallelism", min=0, help="Of operators that are no exchange's downstream.")
    ] = 0,
    max_parallelism: Annotated[int, typer.Option("--max-parallelism", help="Key groups.")] = 128,
    record_bytes: Annotated[
        str, typer.Option("--record-bytes", metavar="MIN-MAX", help="Of a record with a text or bytes field.")
    ] = "100-200",
    keys: Annotated[int, typer.Option("--keys", help="Different keys.")] = 1000,
    skew: Annotated[bool, typer.Option("--skew", help="Few keys have most of the records.")] = False,
    watermarks: Annotated[
        bool, typer.Option("--watermarks/--no-watermarks", help="Among the records, rarely a latency marker too.")
    ] = True,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Records carry one.")] = False,
    version: Annotated[int, typer.Option("--version", min=VERSIONS[0], max=VERSIONS[1], help="Of _metadata.")] = 6,
    inline: Annotated[bool, typer.Option("--inline", help="All of it inside _metadata.")] = False,
    subtasks_per_file: Annotated[int, typer.Option("--subtasks-per-file", help="That share a file.")] = 5,
    buffer: Annotated[str, typer.Option("--buffer", help="A network buffer, the longest chunk.")] = "32KiB",
    as_json: JsonFlag = False,
) -> None:
    """Generate a checkpoint in Flink's format with in-flight records, no Flink needed.

    Records of hash exchanges wait where their key belongs, those of custom ones anywhere. Forward, rescale and
    broadcast exchanges, and their neighbours at the same operator, have none, as in Flink.
    """
    from cdr_core.cli.generate_output import new_output
    from cdr_core.flink.metadata import write_metadata
    from cdr_core.planning.job_spec import parse_spec, read_spec
    from cdr_core.synthetic import Shape, generate

    parsed = parse_spec(read_spec(spec))
    shape = Shape(
        exchanges=_exchanges(parsed),
        parallelism=_parallelism(parsed, parallelism, upstream),
        bytes=_size("--bytes", size),
        seed=seed,
        max_parallelism=max_parallelism,
        record_bytes=_range(record_bytes),
        keys=keys,
        skew=skew,
        watermarks=watermarks,
        timestamps=timestamps,
        version=version,
        inline=inline,
        subtasks_per_file=subtasks_per_file,
        buffer=_size("--buffer", buffer),
    )
    with new_output(directory) as output:
        generated = generate(shape, output.create)
        output.settle()
        output.publish(write_metadata(generated.metadata))
    _show(output.address, generated, as_json)


def _exchanges(spec: JobSpec) -> tuple[ExchangeShape, ...]:
    from cdr_core.synthetic import ExchangeShape

    return tuple(
        ExchangeShape(e.name, e.upstream, e.partition, e.downstream, e.gate, _spread(e.partitioner), e.record, e.key)
        for e in spec.exchanges
    )


def _spread(partitioner: Partitioner) -> Spread:
    from cdr_core.planning.job_spec import Partitioner
    from cdr_core.planning.subtask_mapping import UNMOVABLE
    from cdr_core.synthetic import Spread

    if partitioner in UNMOVABLE:
        return Spread.NONE
    return {Partitioner.HASH: Spread.KEYED, Partitioner.GLOBAL: Spread.FIRST}.get(partitioner, Spread.ANY)


def _parallelism(spec: JobSpec, text: str, upstream: int) -> dict[str, int]:
    """Return the parallelism of every operator of the spec; ``upstream`` applies to operators that are no exchange's
    downstream.
    """
    from cdr_core.planning.parallelism import parse_parallelism

    requested = parse_parallelism(text)
    operators = dict.fromkeys(name for e in spec.exchanges for name in (e.upstream, e.downstream))
    downstream = {exchange.downstream for exchange in spec.exchanges}
    found = dict(requested.by_operator)
    for name in operators:
        if upstream and name not in downstream:
            found[name] = upstream
        elif requested.everywhere is not None:
            found[name] = requested.everywhere
        elif name not in found:
            raise Refused(
                f"--parallelism {text} does not include operator {name}", hint=f"add {name}=3, or give a number"
            )
    return found


def _size(option: str, text: str) -> int:
    from cdr_core.settings import parse_size

    try:
        return parse_size(text)
    except ValueError as error:
        raise Refused(f"{option}: {error}") from None


def _range(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    return _size("--record-bytes", low), _size("--record-bytes", high or low)


def _show(path: str, generated: Generated, as_json: bool) -> None:
    exchanges = generated.exchanges
    totals = {
        "elements": sum(exchange.elements for exchange in exchanges),
        "records": sum(exchange.records for exchange in exchanges),
        "bytes": sum(exchange.bytes for exchange in exchanges),
        "buffers": generated.buffers,
    }
    value: dict[str, Any] = {
        "path": path,
        "totals": totals,
        **totals,  # also at the top level, as before totals existed, like inspect
        "files": generated.files + 1,
        "exchanges": [asdict(exchange) for exchange in exchanges],
    }
    if as_json:
        print_json(value)
        return
    typer.echo(value["path"])
    typer.echo(
        f"  {value['records']:,} records and {value['elements'] - value['records']:,} other elements, "
        f"{value['bytes']:,} bytes in flight in {value['buffers']:,} buffers, {value['files']:,} files"
    )
    for exchange in exchanges:
        where = f"{exchange.records:,} records, {exchange.bytes:,} bytes on {exchange.channels:,} channels"
        typer.echo(f"  exchange {exchange.name}: {where if exchange.channels else 'no in-flight data'}")
