"""``cdr verify``: source and output read again by the independent reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cdr_core.cli.common import JsonFlag, print_json

if TYPE_CHECKING:
    from cdr_core.verify.report import Report

SHOWN = 20
"""Differences that the text lists; ``--json`` has all."""


def verify(
    receipt: Annotated[
        str, typer.Argument(metavar="RECEIPT", help="A receipt's path or address, or the id of a recovery.")
    ] = "",
    source: Annotated[str, typer.Option("--source", help="The checkpoint; by default the receipt's.")] = "",
    output: Annotated[
        str, typer.Option("--output", help="A target, such as parquet:DIR; by default the receipt's.")
    ] = "",
    spec: Annotated[str, typer.Option("--spec", help="The job spec; by default the receipt's.")] = "",
    parallelism: Annotated[
        str, typer.Option("--parallelism", help="The new one, for owners; by default the receipt's, else inferred.")
    ] = "",
    without_source: Annotated[
        bool, typer.Option("--without-source", help="The checkpoint is gone: compare a table with its receipt alone.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Check a recovery again from the bytes: every record once, unchanged, in order, where it belongs.

    Exit status 0 = balanced, 2 = different, 5 = one side cannot be read, 6 = only what the receipt lists is left out.
    """
    from cdr_core import api

    if without_source and (source or not receipt):
        raise typer.BadParameter("needs a receipt, and no --source", param_hint="--without-source")
    for name, value in (("--source", source), ("--output", output), ("--spec", spec)):
        if not receipt and not value:
            raise typer.BadParameter("give a receipt, or --source, --output and --spec", param_hint=name)
    report = api.verify(
        receipt,
        source=source,
        output=output,
        spec=spec,
        parallelism=parallelism,
        without_source=without_source,
    )
    print_json(report.to_json()) if as_json else typer.echo(_as_text(report))
    raise typer.Exit(report.exit_code)


def _as_text(report: Report) -> str:
    from cdr_core.audit.receipt import verdict_text

    found, expected = report.output.records, report.source
    size = f"{expected.bytes:,} bytes, {report.channels:,} channels"
    verdict = verdict_text(report.verdict, proven=not report.unproven, values_checked=report.values_checked)
    lines = [f"{verdict}: {found:,} records in the output, {expected.records:,} expected ({size})"]
    if report.left_out or report.partial:
        lines.append(f"  {report.left_out:,} readable records were left out, as the receipt states")
    lines += [f"  {difference}" for difference in report.differences[:SHOWN]]
    if len(report.differences) > SHOWN:
        lines.append(f"  and {len(report.differences) - SHOWN} more; --json lists all")
    lines += [f"  key unproven: {line}" for line in report.unproven]
    return "\n".join([*lines, *(f"  not checked: {line}" for line in report.unchecked)])
