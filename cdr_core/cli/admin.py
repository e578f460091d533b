"""``cdr settings`` and ``cdr db upgrade``."""

from __future__ import annotations

from pathlib import Path

import typer

from cdr_core import settings as settings_module
from cdr_core.cli.common import JsonFlag, load_settings, print_json
from cdr_core.settings import mask


def show_settings(as_json: JsonFlag = False) -> None:
    """Show every setting with its value and where that came from."""
    sources = settings_module.load_sources()
    settings_module.load()
    for sourced in sources:
        setting = sourced.setting
        if as_json:
            print_json(
                {
                    "name": setting.variable,
                    "value": sourced.shown,
                    "source": sourced.source,
                    "default": setting.default,
                    "unit": setting.unit,
                    "reason": setting.reason,
                }
            )
        else:
            typer.echo(f"{setting.variable:<34} {sourced.shown:<40} {sourced.source:<12} {setting.reason}")


def upgrade() -> None:
    """Bring the metadata database to the schema of this version."""
    from cdr_core.metadata import upgrade as upgrade_schema

    url = load_settings().database_url
    if url.startswith("sqlite:///"):
        from cdr_core.metadata.embedded import prepare_home

        prepare_home(Path(url.removeprefix("sqlite:///")).parent)
    upgrade_schema(url)
    typer.echo(f"{mask(url)} is up to date")
