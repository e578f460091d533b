"""Times as people read them, the same as the page writes them."""

from __future__ import annotations

_UNITS = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))
SHORT = 120.0
"""Seconds below which a time is told in seconds."""


def spoken(seconds: float) -> str:
    """Seconds as they are up to two minutes, then the two largest units that say something: 20 h 13 min."""
    if seconds < SHORT:
        return f"{seconds:.1f} s" if seconds % 1 else f"{seconds:.0f} s"
    whole = round(seconds)
    large, name, small, other = next(unit for unit in _UNITS if whole >= 2 * unit[0] or unit[0] == _UNITS[-1][0])
    rest = whole % large // small
    return f"{whole // large} {name}" + (f" {rest} {other}" if rest else "")


def beside(value: float, limit: float) -> tuple[str, str]:
    """Both, told so that they differ where they do."""
    pair = spoken(value), spoken(limit)
    return pair if pair[0] != pair[1] or value == limit else (f"{value:,.1f} s", f"{limit:,g} s")
