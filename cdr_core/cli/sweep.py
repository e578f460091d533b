"""``cdr sweep``: remove what dead attempts and finished recoveries left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cdr_core.cli.common import JsonFlag, load_settings, open_repository, print_json

if TYPE_CHECKING:
    from cdr_core.sweep import Report


def sweep(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List what would go and why; remove nothing.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Remove leftovers of dead attempts, finished recoveries and dead drills from the workspace, the spill
    directories, the drills' scratch and targets.

    Nothing that a row names is touched, and nothing that is not provably of a recovery in this database.
    """
    from cdr_core.drill.leftovers import sweep_all

    settings = load_settings()
    with open_repository(settings) as repository:
        swept = sweep_all(repository, settings, dry_run=dry_run)
    report = swept.report
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "bytes": report.bytes,
                "removed_bytes": report.removed,
                "leftovers": [leftover.to_json() for leftover in report.leftovers],
                "left": [{"path": left.path, "why": left.why} for left in report.left],
                "ended_drills": list(swept.ended),
            }
        )
        return
    for drill in swept.ended:
        typer.echo(f"{'would end' if dry_run else 'ended'} {'':>14}  drill {drill}  (its process is gone)")
    _show(report, dry_run)


def _show(report: Report, dry_run: bool) -> None:
    for leftover in report.leftovers:
        done = "removed" if leftover.removed else "would go" if dry_run and leftover.removable else "stays"
        typer.echo(f"{done:<9} {leftover.bytes:>14,}  {leftover.path}  ({leftover.recovery}: {leftover.why})")
    for left in report.left:
        typer.echo(f"untouched {'':>14}  {left.path}  ({left.why})")
    size = report.bytes if dry_run else report.removed
    count = sum(leftover.removable if dry_run else leftover.removed for leftover in report.leftovers)
    typer.echo(f"{'would remove' if dry_run else 'removed'} {count:,} files, {size:,} bytes")
