"""Iceberg and Paimon tables are verified through the files that they list, and other people's rows are left aside."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdr_core.errors import CdrError, Unreadable
from cdr_core.metadata import Repository
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.verify.claims import read_claims
from cdr_core.verify.lake import LakeFile, LakeTable, Snapshot
from cdr_core.verify.report import Kind
from cdr_core.verify.tables import DataFile, Owner, open_table
from cdr_core.verify.verify import Request, verify
from tests.support import inline
from tests.support.bucket import NAME, Bucket
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.s3 import SECRET_KEY


def iceberg(folder: Path, patch: pytest.MonkeyPatch) -> str:
    catalog = {"TYPE": "sql", "URI": f"sqlite:///{folder}/lake.db", "WAREHOUSE": f"file://{folder}/lake"}
    for name, value in catalog.items():
        patch.setenv(f"PYICEBERG_CATALOG__LAKE__{name}", value)
    return "iceberg:lake/db.rows"


def paimon(folder: Path, _: pytest.MonkeyPatch) -> str:
    return f"paimon:{folder}/warehouse/db.rows"


def append_iceberg(folder: Path, rows: list[dict[str, Any]]) -> None:
    from pyiceberg.catalog import load_catalog

    uri, warehouse = f"sqlite:///{folder}/lake.db", f"file://{folder}/lake"
    table = load_catalog("lake", type="sql", uri=uri, warehouse=warehouse).load_table("db.rows")
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))


def append_paimon(folder: Path, rows: list[dict[str, Any]]) -> None:
    from pypaimon import CatalogFactory
    from pypaimon.schema.data_types import PyarrowFieldParser

    table = CatalogFactory.create({"warehouse": f"{folder}/warehouse"}).get_table("db.rows")
    builder = table.new_batch_write_builder()
    write, commit = builder.new_write(), builder.new_commit()
    write.write_arrow(pa.Table.from_pylist(rows, schema=PyarrowFieldParser.from_paimon_schema(table.fields)))
    commit.commit(write.prepare_commit())
    write.close()
    commit.close()


def recover_into(output: str, checkpoint: FixtureCheckpoint) -> tuple[Repository, str]:
    """The shipped checkpoint at parallelism 2, in this process."""
    wanted = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", output)
    repository, recovery, settings = inline.start(wanted)
    inline.run_all(repository, recovery, settings)
    return repository, recovery


FOREIGN = {
    "exchange": "main", "gate": 0, "up": 0, "down": 0, "pos": 0, "new_up": 0, "new_down": 0, "ts": None,
    "key_group": None, "row_kind": None, "raw": b"\x01", "main": None,
    "fingerprint": bytes(16), "length": 1,
}  # fmt: skip
"""A row that no recovery of the shipped checkpoint has."""


@pytest.mark.parametrize(("target", "append"), [(iceberg, append_iceberg), (paimon, append_paimon)])
def test_a_recovery_into_a_table_is_balanced_until_a_bit_a_row_or_a_file_is_another(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Any, append: Any
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    output = target(tmp_path, monkeypatch)
    repository, recovery = recover_into(output, checkpoint)
    request = Request(str(checkpoint.path), output, str(checkpoint.spec), "2")
    report = verify(request)
    (unsummed,) = report.unchecked
    assert (report.differences, report.output.records) == ((), 1878)
    assert "no sums" in unsummed
    receipt = repository.receipt(recovery)
    assert receipt is not None
    claims = read_claims(json.dumps(receipt).encode(), "the receipt")
    files = sorted(p for p in tmp_path.rglob("*.parquet") if recovery in str(p) and p.name != "ledger.parquet")
    for asked in (request, replace(request, claims=claims)):
        require_flips_found(asked, files[0])
        require_rows_found(asked, files[1])
        assert verify(asked).verdict == "balanced"

    append(tmp_path, [FOREIGN])
    report = verify(request)
    assert report.verdict == "balanced"
    assert any("1 files of other recoveries" in line for line in report.unchecked)

    row = pq.read_table(files[0]).to_pylist()[3]
    append(tmp_path, [row])
    for asked in (request, replace(request, claims=claims)):
        (doubled,) = (each for each in verify(asked).differences if each.channel)
        assert (doubled.kind, doubled.count, doubled.positions) == (Kind.DOUBLED, 1, (row["pos"],))
        assert doubled.channel is not None
        assert (doubled.channel.up, doubled.channel.down) == (row["up"], row["down"])

    channels = {f"main {row['up']}→{row['down']}" for row in pq.read_table(files[0]).to_pylist()}
    files[0].unlink()
    with pytest.raises(Unreadable, match="without it records are missing of") as caught:
        verify(request)
    assert all(channel in caught.value.what for channel in channels)


@pytest.mark.parametrize(("target", "append"), [(iceberg, append_iceberg), (paimon, append_paimon)])
def test_no_bit_of_what_a_library_wrote_for_the_publication_can_change_unseen(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Any, append: Any
) -> None:
    """Snapshots, manifests and schemas hold much that readers read past: only the receipt's sums tell."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    output = target(tmp_path, monkeypatch)
    repository, recovery = recover_into(output, checkpoint)
    request = Request(str(checkpoint.path), output, str(checkpoint.spec), "2")
    receipt = repository.receipt(recovery)
    with_receipt = replace(request, claims=read_claims(json.dumps(receipt).encode(), "the receipt"))
    assert receipt is not None
    stated = {Path(file["path"].removeprefix("file://")).name for file in receipt["publication"]["metadata"]}
    files = [path for path in tmp_path.rglob("*") if path.name in stated]
    assert {path.name for path in files} == stated
    unseen = 0
    for path in files:
        whole = path.read_bytes()
        for at in range(0, len(whole), len(whole) // 12):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            with suppress(CdrError):
                unseen += verify(request).exit_code == 0
            with suppress(Unreadable):
                report = verify(with_receipt)
                assert report.exit_code == 2, (path, at)
        path.write_bytes(whole[:-1])
        with suppress(Unreadable):
            assert verify(with_receipt).exit_code == 2, path
        path.write_bytes(whole)
        for name in re.finditer(rb'"(properties|summary)"', whole):  # without it the publication seems to be nobody's
            path.write_bytes(whole[: name.start() + 1] + b"P" + whole[name.start() + 2 :])
            with suppress(Unreadable):
                assert verify(with_receipt).exit_code == 2, path
        path.write_bytes(whole)
    assert unseen, "the libraries alone would have told"
    assert verify(with_receipt).verdict == "balanced"
    append(tmp_path, [FOREIGN])
    assert verify(with_receipt).verdict == "balanced"


@pytest.mark.parametrize(("target", "manifests"), [(iceberg, "*.avro"), (paimon, "manifest/*")])
def test_a_damaged_manifest_is_unreadable_and_not_the_end_of_the_process(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Any, manifests: str
) -> None:
    """A decoder that trusts the lengths in a file reads beyond its end; and the sentence says which file it is."""
    checkpoint, output = fixture_checkpoint("a_p3_thr0", 2), target(tmp_path, monkeypatch)
    _, recovery = recover_into(output, checkpoint)
    unreadable = named = 0
    for path in tmp_path.rglob(manifests):
        whole = path.read_bytes()
        for at in range(0, len(whole), 7):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
            try:
                open_table(output, Owner(recovery, str(checkpoint.path)))
            except Unreadable as error:
                unreadable += 1
                named += path.name in error.what
        path.write_bytes(whole)
    # A list that leads elsewhere is told by what is not there.
    assert unreadable * 0.8 < named <= unreadable


def iceberg_on_s3(folder: Path, patch: pytest.MonkeyPatch, warehouse: str) -> str:
    output = iceberg(folder, patch)
    patch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", warehouse)
    return output


def paimon_on_s3(_folder: Path, _patch: pytest.MonkeyPatch, warehouse: str) -> str:
    return f"paimon:{warehouse.replace('s3://', 's3a://')}/db.rows"


@pytest.mark.parametrize("target", [iceberg_on_s3, paimon_on_s3])
def test_a_table_on_s3_is_balanced_until_a_byte_or_a_file_is_another(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucket: Bucket, target: Any
) -> None:
    """The libraries reach the server with what cdr's settings say, and leave nothing of the credentials there."""
    checkpoint, warehouse = fixture_checkpoint("a_p3_thr0", 2), bucket.uri()
    output = target(tmp_path, monkeypatch, warehouse)
    repository, recovery = recover_into(output, checkpoint)
    claims = read_claims(json.dumps(repository.receipt(recovery)).encode(), "the receipt")
    request = Request(str(checkpoint.path), output, str(checkpoint.spec), "2", claims)
    report = verify(request)
    assert (report.verdict, report.output.records, report.unchecked) == ("balanced", 1878, ())

    objects = [f"s3://{NAME}/{key}" for key in bucket.keys(warehouse)]
    assert not [uri for uri in objects if SECRET_KEY.encode() in bucket.get(uri)]
    file = next(uri for uri in objects if uri.endswith(".parquet") and recovery in uri)
    whole = bucket.get(file)
    at = whole.rindex(b"parquet-cpp")
    bucket.put(file, whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
    report = verify(request)
    assert report.exit_code == 2
    assert any(file.rpartition("/")[2] in each.what for each in report.differences)
    bucket.put(file, whole)
    assert verify(request).verdict == "balanced"
    bucket.delete(file)
    with pytest.raises(Unreadable):
        verify(request)


def require_flips_found(request: Request, path: Path) -> None:
    """Single bits all over the file, among them bits that change no row: only the sum of the bytes tells."""
    whole = path.read_bytes()
    rows, unseen = pq.read_table(path), 0
    for at in (4, *range(30, len(whole), len(whole) // 5), *_unread(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with suppress(pa.ArrowException, OSError):
            unseen += pq.read_table(path).equals(rows)
        with suppress(Unreadable):
            assert verify(request).exit_code == 2
    path.write_bytes(whole)
    assert unseen, "the rows alone would have told"


def _unread(whole: bytes) -> list[int]:
    """A place in the name of whoever wrote the file, which readers do not look at."""
    return [whole.rindex(b"parquet-cpp")]


def require_rows_found(request: Request, path: Path) -> None:
    """A row that is missing, there twice or another, in a file that was rewritten in its place."""
    whole = path.read_bytes()
    table = pq.read_table(path)
    rows = table.to_pylist()
    other = {**rows[7], "fingerprint": rows[7]["fingerprint"][:-1] + bytes([rows[7]["fingerprint"][-1] ^ 1])}
    changes = {
        Kind.MISSING: rows[:7] + rows[8:],
        Kind.DOUBLED: [*rows[:8], *rows[7:]],
        Kind.CHANGED: [*rows[:7], other, *rows[8:]],
    }
    for kind, changed in changes.items():
        pq.write_table(pa.Table.from_pylist(changed, schema=table.schema), path)
        report = verify(request)
        assert report.exit_code == 2
        found = [
            (each.channel.up, each.channel.down, each.count)
            for each in report.differences
            if each.channel and each.kind is kind
        ]
        assert (rows[7]["up"], rows[7]["down"], 1) in found
        assert any(path.name in each.what for each in report.differences)
    path.write_bytes(whole)


OURS, THEIRS = "r-0123456789", "r-9876543210"


def lake(*snapshots: Snapshot, owner: Owner, files: dict[str, Snapshot | None]) -> list[str]:
    """The files that count as the owner's."""
    found = [LakeFile(DataFile(name), snapshot) for name, snapshot in files.items()]
    return [file.uri for file in LakeTable(owner, list(snapshots), found).files()]


def test_files_of_expired_snapshots_are_still_told_apart_by_their_names() -> None:
    theirs = Snapshot(2, {"cdr.recovery": THEIRS, "cdr.source-checkpoint": "/b"}, appended=True)
    foreign = Snapshot(3, {}, appended=True)
    ours = f"x/cdr/{OURS}/e4-0.parquet"
    by_id, by_source = Owner(OURS, "/a"), Owner(None, "/a")
    files = {ours: None, "f": foreign, "t": theirs}
    assert lake(theirs, foreign, owner=by_id, files=files) == [ours]
    assert lake(theirs, foreign, owner=by_source, files=files) == [ours]
    assert lake(foreign, owner=by_id, files={ours: None, "f": foreign}) == [ours]
    assert lake(foreign, owner=by_source, files={ours: None, "f": foreign}) == [ours]
    assert lake(theirs, owner=Owner(None, "/b"), files={ours: None, "t": theirs}) == ["t"]
    with pytest.raises(Unreadable, match="holds nothing of recovery"):
        lake(theirs, owner=Owner("r-5", "/a"), files=files)


@pytest.mark.parametrize("target", ["iceberg:nowhere/db.rows", "paimon:/nowhere/db.rows"])
def test_a_table_that_is_not_there_is_an_error_and_not_empty(
    fixture_checkpoint: FixtureCheckpoints, target: str
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    with pytest.raises(CdrError, match=r"cannot be read|knows no catalog"):
        verify(Request(str(checkpoint.path), target, str(checkpoint.spec)))
