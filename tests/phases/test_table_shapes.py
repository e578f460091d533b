"""The columns of a table: fingerprints by default, raw bytes where they are needed or asked for, for ever the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdr_core import settings as settings_module
from cdr_core.channels.table_shapes import TableShape, has_opaque, shape_for
from cdr_core.commit.sinks.prepared_files import ParquetFileWriter
from cdr_core.drain.table_rows import RowBuilder
from cdr_core.errors import SpecRefused, Unbalanced, Unreadable
from cdr_core.flink.types import parse_type
from cdr_core.metadata import Phase, Recovery, RecoveryOptions, Repository
from cdr_core.recovery import recovery_request
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.runtime import table_shape_choice as shapes
from cdr_core.verify.claims import read_claims
from cdr_core.verify.report import Report
from cdr_core.verify.verify import Request, verify
from tests.audit.recovered import validate
from tests.support import inline, output
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.comparing import compare
from tests.support.record_hash import record_hash

IDENTITY = ["raw", "fingerprint", "length"]


@pytest.fixture
def checkpoint(fixture_checkpoint: FixtureCheckpoints) -> FixtureCheckpoint:
    return fixture_checkpoint("a_p3_thr0", 2)


def wish(checkpoint: FixtureCheckpoint, to: Path, spec: str = "") -> RecoveryRequest:
    return RecoveryRequest(str(checkpoint.path), spec or str(checkpoint.spec), "2", f"parquet:{to}")


def recover(request: RecoveryRequest) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows, by place, and the receipt."""
    repository, recovery, settings = inline.start(request)
    assert inline.run_all(repository, recovery, settings)["verdict"] == "balanced"
    receipt = repository.receipt(recovery)
    assert receipt is not None
    validate(receipt)
    found = output.rows(Path(request.to.partition(":")[2]))
    return sorted(found, key=lambda row: (row["gate"], row["up"], row["down"], row["pos"])), dict(receipt)


def verified(checkpoint: FixtureCheckpoint, to: Path, receipt: dict[str, Any] | None = None, spec: str = "") -> Report:
    claims = None if receipt is None else read_claims(json.dumps(receipt).encode(), "the receipt")
    return verify(Request(str(checkpoint.path), f"parquet:{to}", spec or str(checkpoint.spec), "2", claims))


def hash_of(raw: bytes) -> bytes:
    words = record_hash(np.frombuffer(raw, np.uint8), 0, len(raw))
    return b"".join(int(word).to_bytes(8, "big") for word in words)


def stays_in(shape: TableShape, monkeypatch: pytest.MonkeyPatch) -> None:
    """New recoveries write this shape, as an earlier release did."""
    monkeypatch.setattr("cdr_core.recovery.recovery_request.choose_shape", lambda *_: shape)


def test_by_default_rows_have_a_fingerprint_and_a_length_and_no_raw_bytes(
    checkpoint: FixtureCheckpoint, tmp_path: Path
) -> None:
    rows, receipt = recover(wish(checkpoint, tmp_path / "out"))
    compare(rows, checkpoint, 2)
    assert {row["raw"] for row in rows} == {None}
    assert {len(row["fingerprint"]) for row in rows} == {16}
    for found in (receipt, None):
        report = verified(checkpoint, tmp_path / "out", found)
        assert (report.verdict, report.output.records, report.output.bytes) == ("balanced", 1878, report.source.bytes)


def test_raw_bytes_have_the_fingerprint_and_length_that_rows_without_them_have(
    checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without, proof = recover(wish(checkpoint, tmp_path / "without"))
    monkeypatch.setenv("CDR_TABLE_RAW", "true")
    rows, receipt = recover(wish(checkpoint, tmp_path / "with"))
    assert [(row["fingerprint"], row["length"]) for row in rows] == [(hash_of(r["raw"]), len(r["raw"])) for r in rows]
    assert [{**row, "raw": None} for row in rows] == without
    assert receipt["proof_sha256"] == proof["proof_sha256"]
    assert verified(checkpoint, tmp_path / "with", receipt).verdict == "balanced"


def test_raw_bytes_are_kept_where_a_type_contains_opaque(checkpoint: FixtureCheckpoint, tmp_path: Path) -> None:
    spec = checkpoint.spec.read_text().replace("TUPLE<LONG, INT, LONG, STRING>", "TUPLE<LONG, INT, OPAQUE>")
    assert "OPAQUE" in spec
    rows, receipt = recover(wish(checkpoint, tmp_path / "out", spec))
    assert [row["fingerprint"] for row in rows] == [hash_of(row["raw"]) for row in rows]
    assert verified(checkpoint, tmp_path / "out", receipt, spec).verdict == "balanced"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("OPAQUE", True),
        ("TUPLE<LONG, OPAQUE>", True),
        ("TUPLE<LONG, NULLABLE<OPAQUE>>", True),
        ("ROW<a INT, b TUPLE<LONG, ROW<c OPAQUE>>>", True),
        ("TUPLE<LONG, STRING>", False),
        ("ROW<OPAQUE LONG>", False),
        ("ROWDATA<a INT>", False),
    ],
)
def test_opaque_is_found_at_any_depth(text: str, expected: bool) -> None:
    assert has_opaque(parse_type(text)) is expected


@pytest.mark.parametrize("earlier", [TableShape.RAW_ONLY, TableShape.VALUES_ONLY])
@pytest.mark.parametrize("raw", ["true", "false"])
def test_an_append_keeps_the_shape_of_an_earlier_release(
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    earlier: TableShape,
    raw: str,
) -> None:
    monkeypatch.setenv("CDR_TABLE_RAW", raw)
    first, second = (fixture_checkpoint("a_p3_thr0", number) for number in (1, 2))
    with monkeypatch.context() as patch:
        stays_in(earlier, patch)
        receipts = [recover(wish(first, tmp_path / "out"))[1]]
    receipts.append(recover(wish(second, tmp_path / "out"))[1])
    (columns,) = {tuple(pq.read_schema(path).names) for path in (tmp_path / "out").rglob("*.parquet")}
    assert [name for name in columns if name in IDENTITY] == (["raw"] if earlier is TableShape.RAW_ONLY else [])
    for checkpoint, receipt in zip((first, second), receipts, strict=True):
        assert verified(checkpoint, tmp_path / "out", receipt).verdict == "balanced"


def test_a_table_whose_newest_file_is_lost_is_not_taken_for_a_new_one(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    recover(wish(fixture_checkpoint("a_p3_thr0", 1), tmp_path / "out"))
    manifest = output.manifest(tmp_path / "out")
    assert manifest is not None
    lost = tmp_path / "out" / manifest["files"][-1]["path"]
    lost.write_bytes(b"something else")
    with pytest.raises(Unreadable, match="is no Parquet file"):
        inline.start(wish(fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out"))
    lost.unlink()
    with pytest.raises(Unreadable, match=lost.name):
        inline.start(wish(fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out"))


@pytest.mark.parametrize(
    ("columns", "raw", "expected"),
    [
        (None, False, TableShape.OPAQUE_RAW),
        (None, True, TableShape.ALL_RAW),
        (["pos", "raw", "fingerprint"], False, TableShape.OPAQUE_RAW),
        (["pos", "raw"], False, TableShape.RAW_ONLY),
        (["pos"], True, TableShape.VALUES_ONLY),
    ],
)
def test_columns_decide_the_shape(columns: list[str] | None, raw: bool, expected: TableShape) -> None:
    assert shape_for(columns, raw=raw) is expected


def test_the_shape_is_fixed_when_the_recovery_is_created(
    checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, recovery, _ = inline.start(wish(checkpoint, tmp_path / "out"))
    monkeypatch.setenv("CDR_TABLE_RAW", "true")
    assert inline.start(wish(checkpoint, tmp_path / "out"))[1] == recovery
    assert inline.run_all(repository, recovery, settings_module.load())["verdict"] == "balanced"
    assert {row["raw"] for row in output.rows(tmp_path / "out")} == {None}


@pytest.mark.parametrize(
    ("options", "columns"), [({}, ["raw"]), ({"table_raw": False}, []), ({"table_shape": "all-raw"}, IDENTITY)]
)
def test_a_recovery_of_an_earlier_release_is_attached_to_and_goes_on_in_its_shape(
    checkpoint: FixtureCheckpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    columns: list[str],
) -> None:
    made = recovery_request._options

    def of_an_earlier_release(*arguments: Any) -> RecoveryOptions:
        return msgspec.structs.replace(made(*arguments), **{"table_shape": None, **options})

    with monkeypatch.context() as patch:
        patch.setattr(recovery_request, "_options", of_an_earlier_release)
        repository, recovery, settings = inline.start(wish(checkpoint, tmp_path / "out"))
    assert inline.start(wish(checkpoint, tmp_path / "out"))[1] == recovery
    assert inline.run_all(repository, recovery, settings)["verdict"] == "balanced"
    found = pq.read_schema(next((tmp_path / "out").rglob("*.parquet"))).names
    assert [name for name in found if name in IDENTITY] == columns


def test_an_exchange_named_like_a_column_is_refused_for_a_new_table_only(
    checkpoint: FixtureCheckpoint, tmp_path: Path
) -> None:
    spec = checkpoint.spec.read_text().replace("name: main", "name: fingerprint")
    with pytest.raises(SpecRefused, match="exchange fingerprint is named like a column"):
        inline.start(wish(checkpoint, tmp_path / "out", spec))
    inline.start(replace(wish(checkpoint, tmp_path / "out", spec), to="none:"))


def until_commit(request: RecoveryRequest) -> tuple[Repository, str, Any]:
    repository, recovery, settings = inline.start(request)
    inline.run_to(Phase.DRAIN, repository, recovery, settings)
    return repository, recovery, settings


def require_refused(started: tuple[Repository, str, Any], to: Path, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        inline.run(started[0], started[1], Phase.COMMIT, started[2])
    assert output.manifest(to) is None


@pytest.mark.parametrize("shape", list(TableShape))
def test_a_row_that_never_reached_a_file_keeps_the_commit_from_publishing(
    checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: TableShape
) -> None:
    """What was handed to the writer has the digest, but is less than what was drained."""
    stays_in(shape, monkeypatch)
    build = RowBuilder.build
    lost: list[Any] = []

    def losing(self: RowBuilder, body: Any) -> pa.RecordBatch:
        batch = build(self, body)
        if lost or not batch.num_rows:
            return batch
        lost.append(batch.num_rows)
        return batch.slice(1)

    monkeypatch.setattr(RowBuilder, "build", losing)
    require_refused(until_commit(wish(checkpoint, tmp_path / "out")), tmp_path / "out", Unbalanced, "balance")


def spoiled(column: str, value: Any) -> Any:
    """A writer that puts another value into the first row of every file behind the back of its digest."""
    flush = ParquetFileWriter._flush

    def other(self: ParquetFileWriter) -> None:
        if self._pending:
            rows = self._pending[0].to_pylist()
            rows[0][column] = value
            self._pending[0] = pa.RecordBatch.from_pylist(rows, schema=self._pending[0].schema)
        flush(self)

    return other


@pytest.mark.parametrize("shape", list(TableShape))
@pytest.mark.parametrize(("column", "value"), [("ts", 1), ("key_group", 127), ("main", {"f0": 1}), ("new_up", 1)])
def test_a_value_that_the_writer_changed_keeps_the_commit_from_publishing(
    checkpoint: FixtureCheckpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shape: TableShape,
    column: str,
    value: Any,
) -> None:
    stays_in(shape, monkeypatch)
    monkeypatch.setattr(ParquetFileWriter, "_flush", spoiled(column, value))
    started = until_commit(wish(checkpoint, tmp_path / "out"))
    require_refused(started, tmp_path / "out", Unbalanced, r"the rows of data/.*\.parquet are not those")


@pytest.mark.parametrize("column", ["raw", "fingerprint", "length"])
def test_raw_bytes_with_another_fingerprint_keep_the_commit_from_publishing(
    checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    """Also where no digest is there to tell."""
    monkeypatch.setenv("CDR_TABLE_RAW", "true")
    monkeypatch.setattr(ParquetFileWriter, "_flush", spoiled(column, {"length": 1}.get(column, b"sixteen letters!")))
    monkeypatch.setattr(ParquetFileWriter, "close", _without_digest(ParquetFileWriter.close))
    started = until_commit(wish(checkpoint, tmp_path / "out"))
    require_refused(started, tmp_path / "out", Unbalanced, "another fingerprint")


def _without_digest(close: Any) -> Any:
    def closed(writer: ParquetFileWriter) -> None:
        close(writer)
        assert writer._prepared is not None
        writer._prepared = msgspec.structs.replace(writer._prepared, rows_digest=None)

    return closed


def test_a_file_that_was_changed_after_it_was_written_keeps_the_commit_from_publishing(
    checkpoint: FixtureCheckpoint, tmp_path: Path
) -> None:
    started = until_commit(wish(checkpoint, tmp_path / "out"))
    path = next((tmp_path / "out").rglob("*.parquet"))
    data = path.read_bytes()
    at = data.rindex(b"parquet-cpp")
    path.write_bytes(data[:at] + b"P" + data[at + 1 :])
    require_refused(started, tmp_path / "out", Unreadable, "changed after it was written")


def test_every_file_has_its_digest_in_manifest_and_receipt(checkpoint: FixtureCheckpoint, tmp_path: Path) -> None:
    _, receipt = recover(wish(checkpoint, tmp_path / "out"))
    manifest = output.manifest(tmp_path / "out")
    assert manifest is not None
    digests = [file["rows_digest"] for file in manifest["files"]]
    assert digests == [file["rows_digest"] for file in receipt["publication"]["files"]]
    assert all(len(digest) == 16 for digest in digests)


def test_a_target_without_a_table_has_no_shape_in_its_options(checkpoint: FixtureCheckpoint) -> None:
    repository, recovery, _ = inline.start(replace(wish(checkpoint, Path()), to="none:"))
    found: Recovery = repository.recovery(recovery)
    assert found.options.table_shape is None
    assert shapes.stored_shape(found) is TableShape.VALUES_ONLY
