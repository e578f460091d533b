"""``cdr verify``: source and output read again by the independent reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdr_core.cli.common import JsonFlag, load_settings, open_repository, print_json
from cdr_core.errors import CdrError, Refused

if TYPE_CHECKING:
    from cdr_core.verify.claims import Claims
    from cdr_core.verify.report import Report
    from cdr_core.verify.verify import Request

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
    from cdr_core.verify.verify import verify as compare

    if without_source and (source or not receipt):
        raise typer.BadParameter("needs a receipt, and no --source", param_hint="--without-source")
    request = _request(receipt, source, output, spec, parallelism)
    report = _alone(request) if without_source else compare(request)
    print_json(report.to_json()) if as_json else typer.echo(_as_text(report))
    raise typer.Exit(report.exit_code)


def _alone(request: Request) -> Report:
    from cdr_core.verify.without_source import verify_without_source

    assert request.claims is not None, "a receipt was given"
    return verify_without_source(request.output, request.spec, request.claims)


def _request(receipt: str, source: str, output: str, spec: str, parallelism: str) -> Request:
    from cdr_core.verify.verify import Request

    if not receipt:
        for name, value in (("--source", source), ("--output", output), ("--spec", spec)):
            if not value:
                raise typer.BadParameter("give a receipt, or --source, --output and --spec", param_hint=name)
        return Request(source, output, spec, parallelism)
    claims = _claims(receipt)
    recovery = claims.recovery
    return Request(
        source=source or str(recovery["source"]),
        output=output or str(recovery["target"]),
        spec=spec or str(recovery.get("spec") or _stored_spec(str(recovery["id"]))),
        parallelism=parallelism or str(recovery.get("parallelism") or ""),
        claims=claims,
    )


def _claims(receipt: str) -> Claims:
    """Return the claims of the file if there is one of this name, else of the recovery with this id."""
    from cdr_core.storage import storage_for
    from cdr_core.verify.claims import read_claims

    if "/" in receipt or Path(receipt).exists():
        return read_claims(storage_for(receipt).read(receipt), receipt, receipt.rpartition("/")[0] or ".")
    with open_repository(load_settings()) as repository:
        found, state = repository.receipt(receipt), repository.recovery(receipt).state
    if found is None:
        raise Refused(f"recovery {receipt} has no receipt, it is {state}", hint=f"run: cdr status {receipt}")
    return read_claims(json.dumps(found).encode(), f"the receipt of {receipt}")


def _stored_spec(recovery: str) -> str:
    """Return the spec of the recovery's row, for receipts that do not contain it."""
    try:
        with open_repository(load_settings()) as repository:
            return repository.recovery(recovery).spec
    except CdrError:
        raise Refused("the receipt carries no job spec", hint="give it with --spec") from None


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
