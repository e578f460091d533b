"""Metadata that we wrote, loaded by Flink's own classes: what was changed is changed, the rest is as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdr_core.flink.metadata import CheckpointMetadata, OperatorState, SubtaskState, read_metadata, write_metadata
from cdr_core.flink.operator_id import operator_id_of_uid
from tests.flink.fixtures import MADE
from tests.flink.harness import write_oracle
from tests.support.checkpoints import FixtureCheckpoints

Lines = Mapping[str, tuple[dict[str, Any], ...]]
"""Of an oracle, by type; those that tell of the metadata."""

SLOW = operator_id_of_uid("slow")
KINDS = ("checkpoint", "operator", "keyed_state", "operator_state", "handle")


def _metadata_lines(lines: Lines) -> dict[str, list[dict[str, Any]]]:
    """A copy; the shipped oracles are everybody's."""
    return {kind: [dict(line) for line in lines.get(kind, ())] for kind in KINDS}


def _slow(metadata: CheckpointMetadata, edit: Callable[[OperatorState], OperatorState]) -> CheckpointMetadata:
    operators = (edit(each) if each.operator_id == SLOW else each for each in metadata.operators)
    return replace(metadata, operators=tuple(operators))


def _forced(metadata: CheckpointMetadata) -> CheckpointMetadata:
    """Sets one flag of the Java object: its seven come in the order of their names, behind the class description."""
    at = metadata.properties.index(b"SnapshotType;xp") + len(b"SnapshotType;xp") + 5
    assert metadata.properties[at] == 0
    return replace(metadata, properties=metadata.properties[:at] + b"\x01" + metadata.properties[at + 1 :])


def _without_keyed_state(operator: OperatorState) -> OperatorState:
    states = [each for each in operator.subtasks if isinstance(each, SubtaskState)]
    return replace(operator, subtasks=tuple(replace(each, managed_keyed=None) for each in states))


EDITS: dict[str, Callable[[CheckpointMetadata], CheckpointMetadata]] = {
    "checkpoint id": lambda metadata: replace(metadata, checkpoint_id=987654321),
    "property": _forced,
    "max parallelism": lambda metadata: _slow(metadata, lambda slow: replace(slow, max_parallelism=130)),
    "operator name": lambda metadata: _slow(metadata, lambda slow: replace(slow, name="renamed, é漢")),
    "operator uid": lambda metadata: _slow(metadata, lambda slow: replace(slow, uid="another")),
    "keyed state": lambda metadata: _slow(metadata, _without_keyed_state),
}


def _said(lines: dict[str, list[dict[str, Any]]], edit: str) -> None:
    """Does to what Flink said of the original what the edit did to the bytes."""
    (checkpoint,) = lines["checkpoint"]
    (slow,) = (line for line in lines["operator"] if line["operator_id"] == SLOW)
    match edit:
        case "checkpoint id":
            checkpoint["id"] = 987654321
        case "property":
            checkpoint["properties"] = checkpoint["properties"].replace("forced=false", "forced=true")
        case "max parallelism":
            slow["max_parallelism"] = 130
        case "operator name":
            slow["name"] = "renamed, é漢"
        case "operator uid":
            slow["uid"] = "another"
        case "keyed state":
            lines["keyed_state"] = []


VERSIONS = {4: "v4_a_p3_back_pressure", 5: "v5_a_p3_back_pressure", 6: "v6_a_p3_back_pressure"}
NAMED_SINCE = 5
CASES = [
    pytest.param(version, edit, marks=[] if (version, edit) == (6, "operator name") else pytest.mark.soak)
    for version in VERSIONS
    for edit in EDITS
    if version >= NAMED_SINCE or edit not in {"operator name", "operator uid"}
]


@pytest.mark.parametrize(("version", "edit"), CASES)
def test_flink_reads_the_edited_field_and_all_others_as_they_were(
    flink: str, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, version: int, edit: str
) -> None:
    original = fixture_checkpoint(VERSIONS[version])
    edited = original.copy(tmp_path / "chk")
    metadata = read_metadata((edited / "_metadata").read_bytes())
    (edited / "_metadata").write_bytes(write_metadata(EDITS[edit](metadata)))
    expected = _metadata_lines(original.oracle.lines)
    _said(expected, edit)
    assert expected != _metadata_lines(original.oracle.lines)
    oracle = write_oracle(edited, None, tmp_path / "oracle.jsonl.gz")
    assert _metadata_lines(oracle.lines) == expected


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "a_p2_file_merging" else pytest.mark.soak) for name in MADE]
)
def test_flink_reads_in_a_moved_checkpoint_what_it_wrote(
    flink: str, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, name: str
) -> None:
    """Those with absolute paths were written anew by us when they were unpacked: every path changed, nothing else."""
    checkpoint = fixture_checkpoint(name)
    oracle = write_oracle(checkpoint.path, checkpoint.spec.read_text(), tmp_path / "oracle.jsonl.gz")
    assert oracle.elements == checkpoint.oracle.elements
    assert oracle.channels == checkpoint.oracle.channels
    ours, theirs = _metadata_lines(oracle.lines), _metadata_lines(checkpoint.oracle.lines)
    for line in [*ours["keyed_state"], *ours["operator_state"], *ours["handle"]]:
        here = f"file:{checkpoint.path.parent.resolve()}/"
        if line.get("underlying", "").startswith(here):
            assert Path(line["underlying"].removeprefix("file:")).is_file()
    assert _without_places(ours) == _without_places(theirs)


def _without_places(lines: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Files by name only."""
    everything = [line for kind in KINDS for line in lines[kind]]
    return [{**line, "underlying": Path(line.get("underlying", "")).name} for line in everything]
