"""A table is held against its receipt where the source is gone, and the verdict says that values were not checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cdr_core.cli.main import app
from cdr_core.errors import Refused
from cdr_core.verify.claims import read_claims
from cdr_core.verify.report import Kind, Report
from cdr_core.verify.without_source import verify_without_source
from tests.audit.recovered import Recovered, without

Rows = list[dict[str, Any]]


def verified(ours: Recovered) -> Report:
    claims = read_claims(json.dumps(ours.receipt).encode(), "the receipt")
    return verify_without_source(f"parquet:{ours.output}", ours.spec, claims)


def test_a_table_as_it_was_published_is_balanced_and_its_values_are_not_checked(recovered: Recovered) -> None:
    report = verified(recovered)
    assert (report.verdict, report.differences, report.values_checked) == ("balanced", (), False)
    assert report.to_json()["values"] == "not checked"
    assert recovered.verify(with_receipt=True).to_json()["values"] == "checked"
    assert report.output == recovered.verify(with_receipt=True).output


def drop(rows: Rows) -> None:
    del rows[7]


def double(rows: Rows) -> None:
    rows.insert(7, rows[7])


def move(rows: Rows) -> None:
    rows[7]["new_down"] = 1 - rows[7]["new_down"]


def forge(rows: Rows) -> None:
    rows[7]["fingerprint"] = bytes(16)


def shorten(rows: Rows) -> None:
    rows[7]["length"] -= 1


def swap(rows: Rows) -> None:
    """Two records of a channel and subtask change places: sums stay, the order chain does not."""
    same = [row for row in rows if (row["up"], row["down"]) == (rows[7]["up"], rows[7]["down"])]
    same[0]["pos"], same[1]["pos"] = same[1]["pos"], same[0]["pos"]


def reorder(rows: Rows) -> None:
    """Two rows of a channel and subtask change places in the file."""
    same = [at for at, row in enumerate(rows) if (row["up"], row["down"]) == (rows[7]["up"], rows[7]["down"])]
    rows[same[0]], rows[same[1]] = rows[same[1]], rows[same[0]]


@pytest.mark.parametrize("change", [drop, double, move, forge, shorten, swap, reorder])
def test_the_ledger_tells_a_row_that_is_another_whatever_manifest_and_receipt_say_of_the_file(
    recovered: Recovered, tmp_path: Path, change: Callable[[Rows], None]
) -> None:
    ours = recovered.copy(tmp_path / "out")
    ours.rewrite(0, change)
    ours.publish()
    report = verified(ours)
    assert report.exit_code == 2
    assert any("ledger" in each.what or each.kind is Kind.OUT_OF_ORDER for each in report.differences)


def another_value(rows: Rows) -> None:
    rows[7]["main"]["f2"] += 1


def test_the_digest_in_the_receipt_tells_a_value_that_was_changed_after_the_publication(
    recovered: Recovered, tmp_path: Path
) -> None:
    ours = recovered.copy(tmp_path / "out")
    ours.rewrite(0, another_value)
    report = verified(ours)
    assert any("another digest" in each.what for each in report.differences)


def test_only_the_source_tells_a_value_that_was_wrong_when_it_was_written(recovered: Recovered, tmp_path: Path) -> None:
    """Nothing but the source knows what the value should be: for that reason the verdict has its reservation."""
    ours = recovered.copy(tmp_path / "out")
    ours.rewrite(0, another_value)
    ours.publish()
    assert verified(ours).verdict == "balanced"
    assert ours.verify(with_receipt=True).verdict == "unbalanced"


def test_a_table_without_fingerprints_needs_its_source(recovered: Recovered, tmp_path: Path) -> None:
    ours = without(recovered.copy(tmp_path / "out"), "raw", "fingerprint", "length")
    with pytest.raises(Refused, match="no fingerprints"):
        verified(ours)


def test_the_shell_says_so(recovered: Recovered, tmp_path: Path) -> None:
    receipt = tmp_path / "receipt.json"
    receipt.write_text(json.dumps(recovered.receipt))
    done = CliRunner().invoke(app, ["verify", str(receipt), "--without-source"])
    assert done.exit_code == 0, done.output
    assert "values: not checked)" in done.output.splitlines()[0]
    assert CliRunner().invoke(app, ["verify", "--without-source"]).exit_code != 0
