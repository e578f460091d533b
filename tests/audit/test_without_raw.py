"""Rows without raw bytes are compared by fingerprint and values, those of an earlier release by values alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdr_core.errors import Unreadable
from cdr_core.verify.report import Kind
from tests.audit.recovered import Recovered, recover, without
from tests.support.checkpoints import FixtureCheckpoints

EARLIER = ("raw", "fingerprint", "length")
SHAPES = pytest.mark.parametrize("dropped", [(), EARLIER], ids=["fingerprints", "values alone"])


@SHAPES
@pytest.mark.parametrize("name", ["a_p3_thr0", "d_p4_thr0", "f_p3_thr0", "g_p7_thr0"])
def test_values_are_compared_where_there_are_no_raw_bytes(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, name: str, dropped: tuple[str, ...]
) -> None:
    shipped = fixture_checkpoint(name, 2)
    recovered = without(recover(str(shipped.path), str(shipped.spec), "2", tmp_path), *dropped)
    for with_receipt in (True, False):
        report = recovered.verify(with_receipt=with_receipt, parallelism="2")
        assert report.differences == ()
        assert report.output.records == len(list(shipped.oracle.records))


@SHAPES
@pytest.mark.parametrize(
    ("column", "value", "kind"),
    [
        ("ts", 5, Kind.CHANGED),
        ("main", None, Kind.CHANGED),
        ("row_kind", "-D", Kind.CHANGED),
        ("key_group", 1, Kind.CHANGED),
        ("pos", 9999, Kind.EXTRA),
        ("new_down", 1, Kind.MISPLACED),
    ],
)
def test_a_changed_row_without_raw_bytes_is_found(
    recovered: Recovered, tmp_path: Path, dropped: tuple[str, ...], column: str, value: Any, kind: Kind
) -> None:
    ours = without(recovered.copy(tmp_path / "out"), *dropped)
    row: dict[str, Any] = {}

    def one(rows: list[dict[str, Any]]) -> None:
        row.update(rows[7])
        rows[7][column] = value

    ours.rewrite(0, one)
    found = [
        (each.kind, each.channel.up, each.channel.down)
        for each in ours.verify(parallelism="2").differences
        if each.channel
    ]
    assert (kind, row["up"], row["down"]) in found


@SHAPES
def test_one_field_of_a_value_is_found(recovered: Recovered, tmp_path: Path, dropped: tuple[str, ...]) -> None:
    ours = without(recovered.copy(tmp_path / "out"), *dropped)
    ours.rewrite(1, lambda rows: rows[3]["main"].update(f3="another"))
    (difference,) = ours.verify(parallelism="2").differences
    assert (difference.kind, difference.count) == (Kind.CHANGED, 1)


@pytest.mark.parametrize("column", ["exchange", "up", "down", "pos", "new_down", "new_up", "gate"])
def test_a_table_without_its_columns_is_unreadable(recovered: Recovered, tmp_path: Path, column: str) -> None:
    with pytest.raises(Unreadable, match=f"no column {column}"):
        without(recovered.copy(tmp_path / "out"), column).verify()


@pytest.mark.parametrize("column", ["raw", "fingerprint"])
def test_files_of_different_shapes_do_not_mix(recovered: Recovered, tmp_path: Path, column: str) -> None:
    with pytest.raises(Unreadable, match="raw bytes or fingerprints"):
        without(recovered.copy(tmp_path / "out"), column, only_first=True).verify()


@pytest.mark.parametrize(("column", "value"), [("raw", None), ("fingerprint", bytes(16)), ("length", 3)])
def test_raw_bytes_fingerprint_and_length_belong_together(
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    column: str,
    value: Any,
) -> None:
    monkeypatch.setenv("CDR_TABLE_RAW", "true")
    shipped = fixture_checkpoint("a_p3_thr0", 2)
    ours = recover(str(shipped.path), str(shipped.spec), "2", tmp_path)
    assert ours.verify(with_receipt=True).differences == ()
    ours.rewrite(0, lambda rows: rows[7].update({column: value}))
    found = [each for each in ours.verify(parallelism="2").differences if each.channel]
    assert [(each.kind, each.count) for each in found] == [(Kind.CHANGED, 1)]
