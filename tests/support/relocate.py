"""A shipped checkpoint whose metadata names files by absolute paths, put right for the place it was unpacked at.

Flink writes such paths for state that outlives a checkpoint (shared, merged, changelog files) and looks nowhere else:
only tests that hand a checkpoint to a real Flink need this. ``job.json`` tells the place they were made at; of one that
the harness did not make, it is known here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from cdr_core.flink.metadata import read_metadata, write_metadata

JOB_FILE = "job.json"

PLACES = {
    "r_p3_rocks_inc_true": "file:/srv/flink-lab/chk/r_p3_rocks_inc_true/f2ac2c9b9ef49565a065b271194dc7ee",
}


def relocate(folder: Path) -> None:
    """Rewrites each ``chk-*/_metadata`` below the folder that names a file by the old place."""
    old = _place(folder)
    if old is None:
        return
    new = f"file:{folder.resolve()}"
    for file in folder.glob("chk-*/_metadata"):
        metadata = read_metadata(file.read_bytes())
        moved = everywhere(metadata, lambda part: _moved(part, old, new))
        if moved != metadata:
            file.write_bytes(write_metadata(moved))


def _place(folder: Path) -> str | None:
    """Where the checkpoints of the folder were made; None where nothing in them depends on it."""
    if not (folder / JOB_FILE).is_file():
        return PLACES.get(folder.name)
    place: str = json.loads((folder / JOB_FILE).read_text())["place"]
    return place


def everywhere(value: Any, change: Callable[[Any], Any]) -> Any:
    """A parsed value with every part of it changed, from the outside in; a part that is another now is left alone."""
    changed = change(value)
    if changed is not value:
        return changed
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: everywhere(getattr(value, field.name), change) for field in fields(value)}
        return replace(value, **parts)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(everywhere(item, change) for item in value)
    return value


def _moved(part: Any, old: str, new: str) -> Any:
    inside = isinstance(part, str) and part.startswith(f"{old}/")
    return new + part.removeprefix(old) if inside else part
