"""Headings of the form."""

from __future__ import annotations

SOURCE = "What to recover"


WIDTH = "Target and parallelism"
