"""A shipped checkpoint whose metadata names files by absolute paths, put right for the place it was unpacked at.

Flink writes such paths for state that outlives a checkpoint (shared, merged, changelog files) and looks nowhere else:
only tests that hand a checkpoint to a real Flink need this. ``job.json`` tells the place they were made at.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from cdr_core.flink.metadata import read_metadata, write_metadata

JOB_FILE = "job.json"


def relocate(folder: Path) -> None:
    """Rewrites each ``chk-*/_metadata`` below the folder that names a file by the old place."""
    if not (folder / JOB_FILE).is_file():
        return
    old = json.loads((folder / JOB_FILE).read_text())["place"]
    new = f"file:{folder.resolve()}"
    for file in folder.glob("chk-*/_metadata"):
        metadata = read_metadata(file.read_bytes())
        moved = everywhere(metadata, lambda part: _moved(part, old, new))
        if moved != metadata:
            file.write_bytes(write_metadata(moved))


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
