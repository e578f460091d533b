"""Reading a ``parquet:`` target as any user would: the files that the highest manifest lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


def manifest(directory: Path) -> dict[str, Any] | None:
    """The highest manifest, or ``None`` before anything was published."""
    found = sorted(directory.glob("_cdr/manifest-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    value: dict[str, Any] | None = json.loads(found[-1].read_text()) if found else None
    return value


def files_of(manifest: bytes) -> list[str]:
    """The data files that a manifest lists, in order; their place is in the table."""
    return [file["path"] for file in json.loads(manifest)["files"]]


def rows(directory: Path) -> list[dict[str, Any]]:
    """All visible rows."""
    value = manifest(directory)
    assert value is not None, f"nothing was published in {directory}"
    found: list[dict[str, Any]] = []
    for file in value["files"]:
        path = directory / file["path"]
        assert path.stat().st_size == file["bytes"]
        table = pq.read_table(path)
        assert table.num_rows == file["records"]
        found += table.to_pylist()
    return found
