"""Ledgers and prepared rows that say something else than before: the driver refuses, and nothing is published."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdr_core.errors import Unbalanced, Unreadable
from cdr_core.metadata import Phase
from cdr_core.phases.driver import Drive
from cdr_core.phases.request import RecoveryRequest
from tests.support import inline, onepass
from tests.support.checkpoints import FixtureCheckpoints

Change = Callable[[dict[str, Any]], object]


def change(home: Path, table: str, column: str, where: str, how: Change) -> None:
    """Change the JSON of one row of the metadata database."""
    with sqlite3.connect(home / "cdr.db") as database:
        row, text = database.execute(f"SELECT rowid, {column} FROM {table} WHERE {where}").fetchone()
        value = json.loads(text)
        how(value)
        database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (json.dumps(value), row))


def add_a_record(result: dict[str, Any]) -> None:
    """One more than was drained; the files have one fewer, then."""
    line = next(entry for entry in result["ledger"] if entry["records"])
    line["records"] += 1


@pytest.mark.parametrize(
    ("table", "column", "where", "how", "error"),
    [
        ("unit_result", "result", "phase = 'drain'", add_a_record, "commit does not balance"),
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
    with pytest.raises((Unbalanced, Unreadable), match=error):
        inline.run(repository, recovery, Phase.COMMIT, settings)
    assert not list((tmp_path / "out").glob("_cdr/manifest-*.json"))


def test_one_pass_ends_when_what_was_routed_is_not_what_was_selected(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onepass.set_flags(monkeypatch, tmp_path / "spill")
    results = Drive.results

    def changed(drive: Drive, phase: Phase, step: str = "") -> list[dict[str, Any]]:
        found = results(drive, phase, step)
        if phase is Phase.SPILL:
            add_a_record(found[0])
        return found

    monkeypatch.setattr(Drive, "results", changed)
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    started = inline.start(onepass.request(str(checkpoint.path), str(checkpoint.spec), "2", tmp_path / "out"))
    with pytest.raises(Unbalanced, match="spill does not balance"):
        onepass.one_pass(*started)
