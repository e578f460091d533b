"""Whatever is done to an output, verify says so, and names the channel."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cdr_core.errors import Corrupt, Refused, Unreadable
from cdr_core.verify.report import Kind, Report
from tests.audit.recovered import Recovered

Row = dict[str, Any]
Change = Callable[[list[Row], int, st.DataObject], None]


def tampering(examples: int) -> settings:
    """Each example is a whole verification of one small change: there is nothing to shrink, it would take minutes."""
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
        phases=(Phase.explicit, Phase.reuse, Phase.generate),
    )


def flip(rows: list[Row], i: int, data: st.DataObject) -> None:
    found = bytearray(rows[i]["fingerprint"])
    found[data.draw(st.integers(0, len(found) - 1))] ^= data.draw(st.integers(1, 255))
    rows[i]["fingerprint"] = bytes(found)


def drop(rows: list[Row], i: int, _: st.DataObject) -> None:
    del rows[i]


def double(rows: list[Row], i: int, data: st.DataObject) -> None:
    rows.insert(data.draw(st.integers(0, len(rows))), rows[i])


def swap(rows: list[Row], i: int, data: st.DataObject) -> None:
    same = [j for j, row in enumerate(rows) if channel(row) == channel(rows[i]) and j != i]
    j = data.draw(st.sampled_from(same))
    rows[i], rows[j] = rows[j], rows[i]


def swap_contents(rows: list[Row], i: int, data: st.DataObject) -> None:
    """Two records change places, and each says that it is at its place."""
    same = [j for j, row in enumerate(rows) if channel(row) == channel(rows[i]) and row["main"] != rows[i]["main"]]
    j = data.draw(st.sampled_from(same))
    rows[i], rows[j] = {**rows[j], "pos": rows[i]["pos"]}, {**rows[i], "pos": rows[j]["pos"]}


def replaced(column: str, values: st.SearchStrategy[Any]) -> Change:
    def change(rows: list[Row], i: int, data: st.DataObject) -> None:
        rows[i][column] = data.draw(values.filter(lambda value: value != rows[i][column]))

    return change


def another_value(rows: list[Row], i: int, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["f0", "f1", "f2"]))
    rows[i]["main"] = {**rows[i]["main"], name: rows[i]["main"][name] + 1}


CHANGES: dict[str, tuple[Change, set[Kind]]] = {
    "a flipped byte": (flip, {Kind.CHANGED}),
    "another length": (replaced("length", st.integers(0, 99)), {Kind.CHANGED}),
    "raw bytes": (replaced("raw", st.binary()), {Kind.CHANGED}),
    "a missing row": (drop, {Kind.MISSING}),
    "a doubled row": (double, {Kind.DOUBLED}),
    "swapped rows": (swap, {Kind.OUT_OF_ORDER}),
    "swapped records": (swap_contents, {Kind.CHANGED}),
    "another position": (replaced("pos", st.integers(-5, 400)), {Kind.MISSING}),
    "another upstream": (replaced("up", st.integers(0, 2)), {Kind.MISSING}),
    "another downstream": (replaced("down", st.integers(0, 3)), {Kind.MISSING}),
    "another exchange": (replaced("exchange", st.just("other")), {Kind.MISSING}),
    "another gate": (replaced("gate", st.integers(0, 3)), {Kind.CHANGED}),
    "another owner": (replaced("new_down", st.integers(0, 3)), {Kind.MISPLACED}),
    "another channel": (replaced("new_up", st.integers(0, 3)), {Kind.MISPLACED}),
    "another timestamp": (replaced("ts", st.none() | st.integers(0, 10)), {Kind.CHANGED}),
    "another key group": (replaced("key_group", st.none() | st.integers(0, 127)), {Kind.CHANGED}),
    "another row kind": (replaced("row_kind", st.sampled_from(["+I", "-D"])), {Kind.CHANGED}),
    "another value": (another_value, {Kind.CHANGED}),
    "no value": (replaced("main", st.none()), {Kind.CHANGED}),
}


def channel(row: Row) -> tuple[str, int, int]:
    return row["exchange"], row["up"], row["down"]


def named(report: Report, kinds: set[Kind]) -> set[tuple[str, int, int]]:
    return {
        (found.channel.exchange, found.channel.up, found.channel.down)
        for found in report.differences
        if found.channel is not None and found.kind in kinds
    }


@pytest.mark.parametrize("name", CHANGES)
@tampering(8)
@given(data=st.data())
def test_any_change_of_a_row_is_found_with_its_channel(
    recovered: Recovered, tmp_path: Path, name: str, data: st.DataObject
) -> None:
    change, kinds = CHANGES[name]
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    ours = recovered.copy(tmp_path / "out")
    number = data.draw(st.integers(0, len(ours.files) - 1))
    touched: list[tuple[str, int, int]] = []

    def one(rows: list[Row]) -> None:
        i = data.draw(st.integers(0, len(rows) - 1))
        touched.append(channel(rows[i]))
        change(rows, i, data)

    ours.rewrite(number, one)
    report = ours.verify(with_receipt=data.draw(st.booleans()), parallelism="2")
    assert report.verdict == "unbalanced"
    assert report.exit_code == 2
    assert touched[0] in named(report, kinds)


@tampering(40)
@given(data=st.data())
def test_a_flipped_byte_of_a_file_is_never_balanced(recovered: Recovered, tmp_path: Path, data: st.DataObject) -> None:
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    ours = recovered.copy(tmp_path / "out")
    path = data.draw(st.sampled_from(ours.files))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    try:
        report = ours.verify()
    except Unreadable:
        return  # nothing of the file can be read
    assert report.exit_code == 2
    assert any("was changed after it was written" in found.what for found in report.differences)


@pytest.mark.parametrize("name", ["a flipped byte", "a missing row", "a doubled row"])
@tampering(2)
@given(data=st.data())
def test_a_row_of_a_file_that_its_manifest_knows_nothing_of_is_found_with_its_channel(
    recovered: Recovered, tmp_path: Path, name: str, data: st.DataObject
) -> None:
    change, kinds = CHANGES[name]
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    ours = recovered.copy(tmp_path / "out")
    path = data.draw(st.sampled_from(ours.files))
    table = pq.read_table(path)
    rows = table.to_pylist()
    i = data.draw(st.integers(0, len(rows) - 1))
    touched = channel(rows[i])
    change(rows, i, data)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    report = ours.verify(with_receipt=data.draw(st.booleans()), parallelism="2")
    assert report.exit_code == 2
    places = {
        (str(found.channel), found.count) for found in report.differences if found.kind in kinds and found.channel
    }
    assert places == {("{} {}→{}".format(*touched), 1)}
    assert any(path.name in found.what for found in report.differences)


def test_records_whose_contents_cannot_be_read_are_changed_in_their_channels(
    recovered: Recovered, tmp_path: Path
) -> None:
    ours = recovered.copy(tmp_path / "out")
    path = ours.files[0]
    group = pq.read_metadata(path).row_group(0)
    (raw,) = (group.column(i) for i in range(group.num_columns) if group.column(i).path_in_schema == "raw")
    rows = pq.read_table(path, columns=["exchange", "up", "down"]).to_pylist()
    content = bytearray(path.read_bytes())
    content[raw.data_page_offset + 100 : raw.data_page_offset + 300] = bytes(200)
    path.write_bytes(content)
    report = ours.verify(parallelism="2")
    assert report.exit_code == 2
    assert any("cannot be read to its end" in found.what for found in report.differences)
    changed = {str(found.channel): found.count for found in report.differences if found.channel is not None}
    assert changed == Counter("{exchange} {up}→{down}".format(**row) for row in rows)


def test_a_file_that_is_gone_or_has_no_end_is_unreadable_and_the_channels_that_miss_it_are_named(
    recovered: Recovered, tmp_path: Path
) -> None:
    shorter = recovered.copy(tmp_path / "shorter")
    shorter.files[0].write_bytes(shorter.files[0].read_bytes()[:-1])
    lost = Counter("main {up}→{down}".format(**row) for row in pq.read_table(recovered.files[0]).to_pylist())
    with pytest.raises(Corrupt, match="cannot be read as Parquet") as caught:
        shorter.verify()
    assert all(f"{channel} ({count})" in caught.value.what for channel, count in lost.items())
    gone = recovered.copy(tmp_path / "gone")
    gone.files[1].unlink()
    with pytest.raises(Corrupt, match="does not exist; without it records are missing of main"):
        gone.verify()


PROPERTIES = {
    "cdr.recovery": "r-0000000000",
    "cdr.commit-user": "cdr-r-0000000000",
    "cdr.commit-id": "77",
    "cdr.epoch": "77",
    "cdr.source-checkpoint": "/elsewhere/chk-2",
    "cdr.source-metadata-sha256": "0" * 64,
    "cdr.records": "1879",
    "cdr.proof-sha256": "0" * 64,
    "cdr.files-sha256": "0" * 64,
    "cdr.watermark": "5",
    "cdr.properties-sha256": "0" * 64,
}


@pytest.mark.parametrize("value", [None, "another"])
@pytest.mark.parametrize("name", PROPERTIES)
def test_an_edited_property_of_a_publication_is_said(
    recovered: Recovered, tmp_path: Path, name: str, value: str | None
) -> None:
    ours = recovered.copy(tmp_path / "out")
    manifest = json.loads(ours.manifest.read_text())
    if value is not None:
        manifest["properties"][name] = PROPERTIES[name]
    elif name not in manifest["properties"]:
        return
    else:
        del manifest["properties"][name]
    ours.manifest.write_text(json.dumps(manifest, indent=1))
    if (name, value) == ("cdr.recovery", "another"):
        with pytest.raises(Unreadable, match="holds nothing of recovery"):
            ours.verify(with_receipt=True, parallelism="2")
    else:
        assert ours.verify(with_receipt=True, parallelism="2").exit_code == 2
    report = ours.verify(parallelism="2")
    assert report.exit_code == 2
    assert any("edited" in found.what for found in report.differences)


@tampering(60)
@given(data=st.data())
def test_a_byte_of_a_manifest_that_is_another_missing_or_doubled_is_never_balanced(
    recovered: Recovered, tmp_path: Path, data: st.DataObject
) -> None:
    """Without a receipt: most of what a manifest says can be compared with nothing but its own sums."""
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    ours = recovered.copy(tmp_path / "out")
    whole = ours.manifest.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    other = bytes([whole[at] ^ data.draw(st.integers(1, 255))])
    instead = data.draw(st.sampled_from([other, b"", whole[at : at + 1] * 2]))
    ours.manifest.write_bytes(whole[:at] + instead + whole[at + 1 :])
    try:
        report = ours.verify()
    except (Corrupt, Refused):
        return
    assert report.exit_code == 2


def test_a_byte_of_a_marker_that_is_another_missing_or_doubled_is_an_edited_publication(
    recovered: Recovered, tmp_path: Path
) -> None:
    """Somebody waits for that file and believes it; it may be removed afterwards."""
    ours = recovered.copy(tmp_path / "copy")
    (marker,) = (ours.manifest.parent / "done").iterdir()
    whole = marker.read_bytes()
    for at in range(0, len(whole), 4):
        for instead in (b"", whole[at : at + 1] * 2, bytes([whole[at] ^ 1])):
            marker.write_bytes(whole[:at] + instead + whole[at + 1 :])
            report = ours.verify()
            assert [each.kind for each in report.differences] == [Kind.RECEIPT], (at, instead)
    marker.unlink()
    assert ours.verify().verdict == "balanced"


def test_a_path_in_another_spelling_is_an_edited_manifest(recovered: Recovered, tmp_path: Path) -> None:
    ours = recovered.copy(tmp_path / "out")
    whole = ours.manifest.read_text()
    path = json.loads(whole)["files"][0]["path"]
    assert "/" in path
    ours.manifest.write_text(whole.replace(path, path.replace("/", "//", 1), 1))
    report = ours.verify()
    assert report.exit_code == 2
    assert any("edited" in found.what for found in report.differences)


def test_a_file_that_the_manifest_no_longer_lists_is_missing(recovered: Recovered, tmp_path: Path) -> None:
    ours = recovered.copy(tmp_path / "out")
    manifest = json.loads(ours.manifest.read_text())
    manifest["files"].pop()
    (ours.output / "_cdr" / "manifest-2.json").write_text(json.dumps(manifest))
    report = ours.verify()
    assert named(report, {Kind.MISSING})
    assert report.output.records < report.source.records


def test_a_file_that_is_listed_twice_doubles_its_records(recovered: Recovered, tmp_path: Path) -> None:
    ours = recovered.copy(tmp_path / "out")
    manifest = json.loads(ours.manifest.read_text())
    manifest["files"].append(manifest["files"][0])
    ours.manifest.write_text(json.dumps(manifest))
    kinds = {found.kind for found in ours.verify().differences}
    assert Kind.DOUBLED in kinds


def test_a_manifest_that_miscounts_is_said(recovered: Recovered, tmp_path: Path) -> None:
    ours = recovered.copy(tmp_path / "out")
    manifest = json.loads(ours.manifest.read_text())
    manifest["files"][0]["records"] += 1
    ours.manifest.write_text(json.dumps(manifest))
    (difference,) = ours.verify().differences
    assert "its table states" in difference.what


def test_an_output_without_a_manifest_is_unreadable_and_not_empty(recovered: Recovered, tmp_path: Path) -> None:
    ours = recovered.copy(tmp_path / "out")
    ours.manifest.unlink()
    with pytest.raises(Corrupt, match="nothing was published"):
        Recovered(ours.source, ours.spec, ours.output, ours.receipt).verify()
