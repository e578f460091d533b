"""Ledgers and prepared rows that say something else than before: the driver refuses, and nothing is published."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdr_core.errors import StorageError, Unreadable
from cdr_core.metadata import Phase
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints

Change = Callable[[dict[str, Any]], object]


def change(home: Path, table: str, column: str, where: str, how: Change) -> None:
    """Change the JSON of one row of the metadata database."""
    with sqlite3.connect(home / "cdr.db") as database:
        row, text = database.execute(f"SELECT rowid, {column} FROM {table} WHERE {where}").fetchone()
        value = json.loads(text)
        how(value)
        database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (json.dumps(value), row))


def another_result(result: dict[str, Any]) -> None:
    """As if the file had another ledger than was recorded."""
    result["sha256"] = "0" * 64


@pytest.mark.parametrize(
    ("table", "column", "where", "how", "error"),
    [
        ("unit_result", "result", "phase = 'drain'", another_result, "was changed since it was written"),
        (
            "prepared",
            "manifest",
            "true",
            lambda entry: entry.update(watermark=7),
            "was changed in the metadata database",
        ),
    ],
    ids=["ledger of the drain", "prepared row"],
)
def test_commit_publishes_nothing_when_a_row_does_not_fit_the_files(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, table: str, column: str, where: str, how: Change, error: str
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path / 'out'}")
    repository, recovery, settings = inline.start(request)
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL, Phase.DRAIN):
        inline.run(repository, recovery, phase, settings)
    change(settings.home, table, column, where, how)
    with pytest.raises((StorageError, Unreadable), match=error):
        inline.run(repository, recovery, Phase.COMMIT, settings)
    assert not list((tmp_path / "out").glob("_cdr/manifest-*.json"))
