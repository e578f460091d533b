"""Field names in type descriptions: plain identifiers, or anything in backquotes."""

from __future__ import annotations

import re

PLAIN = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")


def quote(name: str) -> str:
    """Return the name as it must be written so that it parses back."""
    return name if PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"
