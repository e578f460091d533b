"""Iceberg and Paimon tables are verified through the files that they list, and other people's rows are left aside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdr_core.audit.independent.verify import Request, verify
from cdr_core.errors import CdrError, Unreadable
from cdr_core.phases.request import RecoveryRequest
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints


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


FOREIGN = {
    "exchange": "main", "gate": 0, "up": 0, "down": 0, "pos": 0, "new_up": 0, "new_down": 0, "ts": None,
    "key_group": None, "row_kind": None, "raw": b"\x01", "main": None,
}  # fmt: skip
"""A row that no recovery of the shipped checkpoint has."""


@pytest.mark.parametrize(("target", "append"), [(iceberg, append_iceberg), (paimon, append_paimon)])
def test_a_recovery_into_a_table_is_balanced_until_a_file_is_lost(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: Any, append: Any
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    output = target(tmp_path, monkeypatch)
    repository, recovery, settings = inline.start(
        RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", output)
    )
    inline.run_all(repository, recovery, settings)
    request = Request(str(checkpoint.path), output, str(checkpoint.spec), "2")
    report = verify(request)
    assert report.differences == ()
    assert report.output.records == 1878

    append(tmp_path, [FOREIGN])
    report = verify(request)
    assert report.verdict == "balanced"
    assert any("1 files of other recoveries" in line for line in report.unchecked)

    ours = next(path for path in tmp_path.rglob("*.parquet") if recovery in str(path))
    ours.write_bytes(ours.read_bytes()[:-1])
    with pytest.raises(Unreadable, match="its table says"):
        verify(request)
    ours.unlink()
    with pytest.raises(Unreadable):
        verify(request)


@pytest.mark.parametrize("target", ["iceberg:nowhere/db.rows", "paimon:/nowhere/db.rows"])
def test_a_table_that_is_not_there_is_an_error_and_not_empty(
    fixture_checkpoint: FixtureCheckpoints, target: str
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    with pytest.raises(CdrError, match=r"cannot be read|knows no catalog"):
        verify(Request(str(checkpoint.path), target, str(checkpoint.spec)))
