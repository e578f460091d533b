"""``cdr inspect``: the contents of a checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from cdr_core.cli.common import JsonFlag, print_json
from cdr_core.errors import CdrError, Unreadable


def inspect(
    checkpoints: Annotated[list[str], typer.Argument(metavar="CHECKPOINT…", help="Checkpoint directories.")],
    spec: Annotated[str, typer.Option("--spec", help="A job spec, to count elements and records.")] = "",
    as_json: JsonFlag = False,
) -> int:
    """Show the contents of a checkpoint: its age, in-flight data, skew, and what blocks a rescale."""
    from cdr_core import api
    from cdr_core.inspection.checkpoint_text import text_of

    failed: list[int] = []
    for number, path in enumerate(checkpoints):
        if number and not as_json:
            typer.echo()
        try:
            value = api.inspect(path, spec)
        except CdrError as error:
            failed.append(error.exit_code)
            value = {"path": path, "error": str(error)}
        if as_json:
            print_json(value)
        elif "error" in value:
            typer.echo(f"{path}: {value['error']}", err=True)
        else:
            typer.echo("\n".join(text_of(value)))
    return _exit_code(failed, len(checkpoints))


def _exit_code(failed: list[int], asked: int) -> int:
    """Return the exit code that all failures share; if only some checkpoints failed, that of unreadable input."""
    if not failed:
        return 0
    return failed[0] if len(failed) == asked and len(set(failed)) == 1 else Unreadable.exit_code
