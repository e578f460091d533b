"""Refusal of a value that cannot be written as its type."""

from __future__ import annotations

from typing import NoReturn

from cdr_core.errors import SpecRefused


def refuse(value: object, type_text: str, why: str = "") -> NoReturn:
    """Raise, with the value shortened."""
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "…"
    raise SpecRefused(
        f"{shown} cannot be written as {type_text}" + (f": {why}" if why else ""),
        hint="values have the shape that decoding gives",
    )
