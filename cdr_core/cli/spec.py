"""``cdr spec``: drafts a job spec."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cdr_core.cli.common import JsonFlag, print_json
from cdr_core.errors import SpecRefused


def spec(
    checkpoint: Annotated[str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint's directory (chk-N).")],
    plan: Annotated[str, typer.Option("--plan", help="The job's plan: JSON of Flink's /jobs/JOB/plan.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Draft a job spec: known parts, guessed parts, and parts to fill in."""
    from cdr_core.channels.channel_source import open_checkpoint
    from cdr_core.drafting import as_document, as_yaml, draft_spec, parse_job_graph

    graph = parse_job_graph(_read_plan(plan)) if plan else None
    draft = draft_spec(open_checkpoint(checkpoint), graph)
    if not as_json:
        typer.echo(as_yaml(draft), nl=False)
        return
    print_json(as_document(draft))
    for note in (*draft.notes, *(f"{e.name}: {comment}" for e in draft.exchanges for comment in e.comments)):
        typer.echo(note, err=True)


def _read_plan(plan: str) -> str:
    try:
        return Path(plan.removeprefix("file://")).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SpecRefused(f"plan {plan!r} cannot be read: {reason}", hint="give a JSON file") from None
