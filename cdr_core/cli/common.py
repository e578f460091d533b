"""Shared by the commands: options, opening the database, printing values."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdr_core import settings as settings_module
from cdr_core.errors import Refused
from cdr_core.log import configure
from cdr_core.settings import Settings
from cdr_core.targets import SYNTAXES

if TYPE_CHECKING:
    from cdr_core.metadata import Repository

TARGETS = f"{', '.join(SYNTAXES[:-1])} or {SYNTAXES[-1]}"
"""The values of --to; DIR may be on s3://."""

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@contextmanager
def open_repository(settings: Settings) -> Iterator[Repository]:
    """Yield the metadata database. A file of this host is made and upgraded on first use, a shared one only
    on demand.
    """
    from cdr_core.metadata import Repository, upgrade

    url = settings.database_url
    embedded = url.startswith("sqlite:///")
    if embedded:
        prepare_home(Path(url.removeprefix("sqlite:///")).parent)
    try:
        repository = Repository.open(url)
    except Refused:
        if not embedded:
            raise
        upgrade(url)
        repository = Repository.open(url)
    with repository:
        yield repository


def prepare_home(home: Path) -> None:
    """Make the directory of the embedded database."""
    from cdr_core.storage.local import make_directories  # numpy, which most commands need only later

    try:
        make_directories(home, 0o700)  # it will hold records
    except OSError as error:
        raise Refused(f"cannot make {home}: {error.strerror}", hint="set CDR_HOME to a place you can write") from None


def load_settings() -> Settings:
    """Return the settings in force, which the log follows from now on."""
    settings = settings_module.load()
    configure(settings.log_level, settings.log_format)
    return settings


def print_json(value: Mapping[str, Any]) -> None:
    """Print one object on one line."""
    from cdr_core.cli.rows import json_parts  # numpy, which most commands need only later

    sys.stdout.writelines(json_parts(value))
    sys.stdout.write("\n")
    sys.stdout.flush()
