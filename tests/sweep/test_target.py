"""Which prepared files of a table nothing names."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cdr_core.metadata import RecoveryState
from cdr_core.sweep.target import unpublished
from cdr_core.targets import Target


def test_files_that_a_manifest_lists_stay_though_no_row_names_them(tmp_path: Path) -> None:
    """The database may have lost its last transactions, the target has not."""
    data, manifests = tmp_path / "data" / "r-1", tmp_path / "_cdr"
    for directory in (data, manifests):
        directory.mkdir(parents=True)
    for name in ("e1-a.parquet", "e1-b.parquet"):
        (data / name).touch()
    (manifests / "manifest-1.json").write_text(json.dumps({"files": [{"path": "data/r-1/e1-a.parquet"}]}))
    recovery: Any = SimpleNamespace(
        id="r-1", output=Target.parse(f"parquet:{tmp_path}"), state=RecoveryState.DONE, epoch=1
    )
    found, left = unpublished(recovery, ())
    assert ([Path(file.name).name for file in found], left) == (["e1-b.parquet"], [])
