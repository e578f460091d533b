"""The command line: its commands, and the message and exit code of every error.

Heavy libraries are imported inside the commands that need them, so that ``cdr --help`` answers at once.
"""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from cdr_core import __version__
from cdr_core.cli import admin, recover, recoveries
from cdr_core.cli import checkpoint as checkpoint_command
from cdr_core.cli import drill as drill_commands
from cdr_core.cli import elements as elements_command
from cdr_core.cli import generate as generate_command
from cdr_core.cli import inspect as inspect_command
from cdr_core.cli import plan as plan_command
from cdr_core.cli import spec as spec_command
from cdr_core.cli import sweep as sweep_command
from cdr_core.cli import verify as verify_command
from cdr_core.cli.remedy import remedy_command
from cdr_core.errors import USAGE_EXIT_CODE, CdrError

app = typer.Typer(
    name="cdr",
    help="Recover the in-flight records of a Flink unaligned checkpoint, exactly once, with a receipt.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
database = typer.Typer(help="The metadata database.", no_args_is_help=True)
app.add_typer(database, name="db")
app.add_typer(drill_commands.app, name="drill")

app.command("inspect")(inspect_command.inspect)
app.command("elements")(elements_command.elements)
app.command("spec")(spec_command.spec)
app.command("plan")(plan_command.plan)
app.command("generate")(generate_command.generate)
app.command("recover")(recover.recover)
app.command("resume")(recover.resume)
app.command("phase")(recover.phase)
app.command("status")(recoveries.status)
app.command("list")(recoveries.list_recoveries)
app.command("cancel")(recoveries.cancel)
app.command("checkpoint")(checkpoint_command.checkpoint)
app.command("receipt")(recoveries.receipt)
app.command("verify")(verify_command.verify)
app.command("sweep")(sweep_command.sweep)
app.command("settings")(admin.show_settings)
database.command("upgrade")(admin.upgrade)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def run() -> NoReturn:
    """Run the command line: every failure is one sentence on stderr and a documented exit code."""
    try:
        outcome = app(standalone_mode=False, prog_name="cdr")
        sys.exit(outcome if isinstance(outcome, int) else 0)
    except CdrError as error:
        typer.echo(f"cdr: {error}", err=True)
        if command := remedy_command(error, sys.argv[1:]):
            typer.echo(f"cdr: run: {command}", err=True)
        sys.exit(error.exit_code)
    except typer.TyperException as error:
        if sentence := _sentence(error):
            typer.echo(f"cdr: {sentence}", err=True)
        sys.exit(USAGE_EXIT_CODE)
    except (typer.Abort, KeyboardInterrupt):
        typer.echo("cdr: interrupted", err=True)
        sys.exit(130)


def _sentence(error: typer.TyperException) -> str:
    """Return what is wrong with the command line; empty if only the help was requested."""
    message = getattr(error, "format_message", None)
    return str(message() if message is not None else error).strip()


if __name__ == "__main__":
    run()
