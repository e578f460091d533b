"""Responses without secrets: every secret of this server's environment and settings is replaced by stars in every text.

Errors, specs and reasons are texts of users and libraries. Drivers never print secrets and their lines are cleaned;
this is the last filter, for secrets that reached the database nevertheless.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse

from cdr_airflow.redact import Redactor, redactor_for


def cleaner() -> Redactor:
    """Return the redactor of the current settings, which may change while the server runs."""
    return redactor_for(os.environ)


def cleaned(value: Any, clean: Redactor) -> Any:
    """Return the value with every text in it cleaned; names of fields stay."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {name: cleaned(each, clean) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(each, clean) for each in value]
    return value


class CleanJSON(JSONResponse):
    """The page's only kind of JSON."""

    def render(self, content: Any) -> bytes:
        return super().render(cleaned(content, cleaner()))
