"""Files of state that are not there are found before anything is done; what the plan counts is what is done."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdr_core import settings as settings_module
from cdr_core.errors import CdrError, PlanRefused
from cdr_core.flink.metadata import (
    CheckpointMetadata,
    OperatorState,
    RelativeFile,
    SubtaskState,
    read_metadata,
    write_metadata,
)
from cdr_core.flink.state.snapshots import FullHandle
from cdr_core.inspection.what_if import what_if
from tests.audit.recovered import validate
from tests.phases.rewriting import request_of, rewrite
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.inline import WithoutSpark
from tests.support.relocate import relocate
from tests.support.shell import Shell


def planned(source: Path, spec: Path, parallelism: str, out: Path) -> tuple[dict[str, Any], tuple[CdrError, ...]]:
    settings = settings_module.load()
    found = what_if(str(source), str(spec), parallelism, f"checkpoint:{out}", settings, exact=False, speed=None)
    return found.value, found.refusals


def metadata_of(checkpoint: Path) -> CheckpointMetadata:
    return read_metadata((checkpoint / "_metadata").read_bytes())


def keyed_file(checkpoint: Path) -> tuple[OperatorState, RelativeFile]:
    """A file of keyed state, and its operator."""
    for operator in metadata_of(checkpoint).operators:
        for subtask in operator.subtasks:
            keyed = subtask.managed_keyed if isinstance(subtask, SubtaskState) else None
            if isinstance(keyed, FullHandle) and isinstance(keyed.delegate, RelativeFile):
                return operator, keyed.delegate
    raise AssertionError("no keyed state in a file")


@pytest.mark.parametrize("parallelism", ["same", "2"])
@pytest.mark.parametrize("damage", ["missing", "of another size"])
def test_a_state_file_that_is_gone_or_cut_is_refused_in_the_plan_with_its_operator_and_the_way_out(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, parallelism: str, damage: str
) -> None:
    shipped = fixture_checkpoint("a_p3_thr0")
    source = shipped.copy(tmp_path / "chk-2")
    operator, file = keyed_file(source)
    if damage == "missing":
        (source / file.path).unlink()
    else:
        (source / file.path).write_bytes((source / file.path).read_bytes()[:-1])
    _, refused = planned(source, shipped.spec, parallelism, tmp_path / "out")
    (error,) = refused
    assert isinstance(error, PlanRefused)
    assert error.where.operator == operator.label
    assert file.path in error.what
    assert damage in error.what
    assert "recover to a table" in error.hint
    with pytest.raises(PlanRefused, match=file.path):
        inline.start(request_of(source, shipped.spec, parallelism, tmp_path / "out"))


def test_state_whose_head_cannot_be_read_is_refused_with_its_operator(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    """A file that ends inside its head, of a size that nobody noted."""
    shipped = fixture_checkpoint("a_p3_thr0")
    source = shipped.copy(tmp_path / "chk-2")
    operator, file = keyed_file(source)

    def unsized(subtask: Any) -> Any:
        keyed = getattr(subtask, "managed_keyed", None)
        if keyed is None or keyed.delegate != file:
            return subtask
        return replace(subtask, managed_keyed=replace(keyed, delegate=replace(file, size=-1)))

    metadata = metadata_of(source)
    operators = tuple(replace(each, subtasks=tuple(map(unsized, each.subtasks))) for each in metadata.operators)
    (source / "_metadata").write_bytes(write_metadata(replace(metadata, operators=operators)))
    (source / file.path).write_bytes((source / file.path).read_bytes()[:20])
    _, refused = planned(source, shipped.spec, "2", tmp_path / "out")
    assert [(type(error), error.where.operator) for error in refused] == [(PlanRefused, operator.label)]


def test_files_outside_that_are_missing_are_a_warning_of_the_plan_and_named_in_the_receipt(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell
) -> None:
    """The shared files of this one stayed where Flink wrote them: on another machine."""
    source, out = fixture_checkpoint("r_p3_rocks_inc_true"), tmp_path / "out"
    value, refused = planned(source.path, source.spec, "same", out)
    assert (refused, len(value["state"]["missing"]), value["state"]["unknown"]) == ((), 15, [])
    assert value["state"]["missing"] == value["state"]["depends_on"]
    assert [value["state"]["missing"][0] in warning for warning in value["warnings"]] == [True]
    monkeypatch.setattr("cdr_core.runtime.executor_backend.SparkWorkers", lambda settings: WithoutSpark())
    arguments = ("--spec", str(source.spec), "--parallelism", "same", "--to", f"checkpoint:{out}")
    code, said, _ = shell("recover", str(source.path), *arguments)
    assert (code, "missing  15 files outside" in said) == (0, True)
    receipt = json.loads((out / "cdr-receipt.json").read_text())
    validate(receipt)
    assert receipt["checkpoint"]["missing"] == value["state"]["missing"]


def test_files_where_cdr_cannot_look_are_unknown_and_others_are_there(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    shipped = fixture_checkpoint("a_p2_rocksdb_incremental")
    home, out = Path(shutil.copytree(shipped.path.parent, tmp_path / "job")), tmp_path / "out"
    relocate(home)
    source = home / "chk-2"
    assert planned(source, shipped.spec, "same", out)[0]["state"]["missing"] == []
    one = planned(source, shipped.spec, "same", out)[0]["state"]["depends_on"][0]

    def moved(value: Any) -> Any:
        return replace(value, path="hdfs://name/state") if getattr(value, "path", None) == one else value

    def elsewhere(subtask: Any) -> Any:
        keyed = getattr(subtask, "managed_keyed", None)
        if keyed is None:
            return subtask
        shared, private = (
            tuple(replace(file, handle=moved(file.handle)) for file in files) for files in (keyed.shared, keyed.private)
        )
        return replace(subtask, managed_keyed=replace(keyed, shared=shared, private=private))

    metadata = metadata_of(source)
    operators = tuple(replace(each, subtasks=tuple(map(elsewhere, each.subtasks))) for each in metadata.operators)
    (source / "_metadata").write_bytes(write_metadata(replace(metadata, operators=operators)))
    value, refused = planned(source, shipped.spec, "same", out)
    assert (refused, value["state"]["unknown"], value["state"]["missing"]) == ((), ["hdfs://name/state"], [])


@pytest.mark.parametrize(
    ("name", "parallelism"),
    [("t_p3_timers_rocksdb", "2"), ("a_p2_file_merging", "3")],
)
def test_the_plan_counts_what_is_copied_and_needed_as_the_receipt_does(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, name: str, parallelism: str
) -> None:
    source, out = fixture_checkpoint(name), tmp_path / "out"
    value, refused = planned(source.path, source.spec, parallelism, out)
    state, done = value["state"], rewrite(source.path, source.spec, parallelism, out)["checkpoint"]
    assert refused == ()
    assert (state["copied_files"], state["copied_bytes"]) == (
        len(done["copied"]),
        sum(file["bytes"] for file in done["copied"]),
    )
    assert state["depends_on"] == done["depends_on"]
    assert (state["merged_bytes"] > 0) == (done["state"]["read"] > 0)
    assert state["merged_bytes"] <= done["state"]["read"], "all of it is read, and heads more than once"
