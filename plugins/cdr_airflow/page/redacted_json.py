"""Answers without secrets: what this server's environment and settings hold as one is replaced by stars in every text.

Errors, specs and reasons are other people's words. A driver is told never to print a secret and its lines are cleaned;
this is the same lock on the way out, for what got into the database all the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse

from cdr_airflow.redact import Redactor, redactor_for


def cleaner() -> Redactor:
    """Of this moment: settings may change while the server runs."""
    return redactor_for(os.environ)


def cleaned(value: Any, clean: Redactor) -> Any:
    """The value with every text in it cleaned; names of fields are ours and stay."""
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
