"""``python -m cdr_airflow.embedded demo | up | down | status``; exit codes as everywhere in cdr."""

from __future__ import annotations

import argparse
import json
import sys

from cdr_airflow.embedded import demo, instance
from cdr_airflow.embedded.console import Console
from cdr_airflow.embedded.home import USER, Home
from cdr_core import settings
from cdr_core.errors import USAGE_EXIT_CODE, CdrError


class Parser(argparse.ArgumentParser):
    """A parser that ends with cdr's exit code for usage errors."""

    def error(self, message: str) -> None:  # type: ignore[override] # it ends the process, as the original does
        self.print_usage(sys.stderr)
        self.exit(USAGE_EXIT_CODE, f"{self.prog}: {message}\n")


def main(arguments: list[str] | None = None) -> int:
    """Run a command; every failure is one sentence."""
    parser = Parser(prog="python -m cdr_airflow.embedded", description="Airflow embedded under CDR_HOME")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("demo", help="recover the shipped checkpoint through the DAG cdr_recover")
    starts = commands.add_parser("up", help="start Airflow on this host")
    starts.add_argument("--port", type=int, help="default: 8080, or a free one where that is taken; 0: a free one")
    commands.add_parser("down", help="stop it; no process is left")
    commands.add_parser("status", help="what runs, as JSON")
    options = parser.parse_args(arguments)
    console = Console()
    try:
        _run(options, Home(settings.load().home), console)
    except CdrError as error:
        console.note(f"cdr: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        console.progress.print("Stopped.")
        return 130
    return 0


def _run(options: argparse.Namespace, home: Home, console: Console) -> None:
    if options.command == "demo":
        demo.demo(home, console)
    elif options.command == "up":
        _print_addresses(home, instance.up(home, options.port, console), console)
    elif options.command == "down":
        ended = instance.down(home, console)
        console.say(f"Stopped; {ended} processes ended." if ended else "Nothing was running.")
    else:
        console.say(json.dumps(instance.status(home)))


def _print_addresses(home: Home, started: instance.Started, console: Console) -> None:
    console.say(f"Airflow  {started.url}")
    console.say(f"Page     {started.url}/cdr/")
    if started.is_new_password:
        console.say(f"Login    {USER} / {started.password}   (shown once; kept in {home.passwords})")
    else:
        console.say(f"Login    {USER}, password in {home.passwords}")


if __name__ == "__main__":
    sys.exit(main())
