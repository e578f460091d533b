"""A shipped checkpoint whose metadata names files by absolute paths, put right for the place it was unpacked at.

Flink writes such paths for state that outlives a checkpoint (shared, merged, changelog files) and looks nowhere else:
only tests that hand a checkpoint to a real Flink need this. ``job.json`` tells the place they were made at.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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
        moved = _moved(metadata, old, new)
        if moved != metadata:
            file.write_bytes(write_metadata(moved))


def _moved(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str):
        return new + value.removeprefix(old) if value.startswith(f"{old}/") else value
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: _moved(getattr(value, field.name), old, new) for field in fields(value)})
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return tuple(_moved(item, old, new) for item in value)
    return value
