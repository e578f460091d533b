"""``cdr plan``: predict a recovery before anything is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cdr_core.cli.common import TARGETS, JsonFlag, load_settings, print_json
from cdr_core.errors import Corrupt, Refused

if TYPE_CHECKING:
    from cdr_core.planning.estimate import Speed


def plan(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint's directory (chk-N).")],
    spec: Annotated[str, typer.Option("--spec", help="The job spec: a YAML file.")],
    parallelism: Annotated[str, typer.Option("--parallelism", help="2, slow=2,gen=3 or same.")],
    to: Annotated[str, typer.Option("--to", help=f"The target, to see whether it is refused: {TARGETS}.")] = "",
    exact: Annotated[bool, typer.Option("--exact", help="Read every record, however many there are.")] = False,
    estimate: Annotated[bool, typer.Option("--estimate", help="Read no record.")] = False,
    throughput: Annotated[
        str, typer.Option("--throughput", help="Bytes a second to assume, such as 100MB; else as measured.")
    ] = "",
    trust_key: Annotated[
        bool, typer.Option("--trust-key", help="Do not refuse a key that nothing in the checkpoint proves.")
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """What if: per new subtask records, bytes, spill and time; and everything that is refused, not only the first.

    Up to 256 MB in flight every record is read. Beyond that, or with --estimate, the bytes of channels whose
    records get different owners are split evenly. Split points are not shown: the phase read finds them.
    """
    from cdr_core import api
    from cdr_core.inspection.what_if_text import text_of

    if exact and estimate:
        raise typer.BadParameter("--exact and --estimate contradict each other: give one of them")
    settings = load_settings()
    speed = _given_speed(throughput) if throughput else None
    looks = True if exact else False if estimate else None
    found = api.plan(
        checkpoint,
        spec,
        parallelism,
        to,
        settings=settings,
        exact=looks,
        speed=speed,
        trust_key=trust_key,
        with_channels=as_json,
    )
    if as_json:
        print_json(found.value)
    else:
        typer.echo("\n".join(text_of(found.value)))
    if any(isinstance(error, Corrupt) for error in found.refusals):
        return Corrupt.exit_code
    return Refused.exit_code if found.refusals else 0


def _given_speed(text: str) -> Speed:
    from cdr_core.planning.estimate import Speed
    from cdr_core.settings import parse_size

    try:
        size = parse_size(text.strip().removesuffix("/s"))
    except ValueError as error:
        raise Refused(f"--throughput {error}", hint="write 100MB") from None
    if size < 1:
        raise Refused(f"--throughput {text!r} is no speed", hint="write 100MB")
    return Speed(size, "configured by --throughput")
