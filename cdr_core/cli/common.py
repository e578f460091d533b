"""Shared by the commands: options, opening the database, printing values."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdr_core import settings as settings_module
from cdr_core.log import configure
from cdr_core.settings import Settings
from cdr_core.targets import SYNTAXES

if TYPE_CHECKING:
    from cdr_core.metadata import Repository

TARGETS = f"{', '.join(SYNTAXES[:-1])} or {SYNTAXES[-1]}"
"""The values of --to; DIR may be on s3://."""

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def open_repository(settings: Settings) -> AbstractContextManager[Repository]:
    """Return the metadata database of the settings, to be entered."""
    from cdr_core.metadata.embedded import open_repository as open_database

    return open_database(settings.database_url)


def load_settings() -> Settings:
    """Return the settings in force, which the log follows from now on."""
    settings = settings_module.load()
    configure(settings.log_level, settings.log_format)
    return settings


def print_json(value: Mapping[str, Any]) -> None:
    """Print one object on one line."""
    from cdr_core.inspection.rows import json_parts  # numpy, which most commands need only later

    sys.stdout.writelines(json_parts(value))
    sys.stdout.write("\n")
    sys.stdout.flush()
