"""``CDR_TABLE_RAW=false``: a table without the records' bytes, of which everything is proved all the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdr_core.audit.independent.claims import read_claims
from cdr_core.audit.independent.report import Report
from cdr_core.audit.independent.verify import Request, verify
from cdr_core.drain.rows import RowBuilder
from cdr_core.errors import Refused, Unbalanced, Unreadable
from cdr_core.metadata import Phase
from tests.audit.recovered import validate
from tests.phases.test_thread import compare
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.onepass import Recovered, passed, phased, request


@pytest.fixture
def checkpoint(fixture_checkpoint: FixtureCheckpoints) -> FixtureCheckpoint:
    return fixture_checkpoint("a_p3_thr0", 2)


@pytest.fixture(autouse=True)
def _without_raw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDR_TABLE_RAW", "false")


def wish(checkpoint: FixtureCheckpoint, to: Path, **options: Any) -> Any:
    return request(str(checkpoint.path), str(checkpoint.spec), "2", to, **options)


def verified(checkpoint: FixtureCheckpoint, to: Path, receipt: dict[str, Any] | None = None) -> Report:
    claims = None if receipt is None else read_claims(json.dumps(receipt).encode(), "the receipt")
    return verify(Request(str(checkpoint.path), f"parquet:{to}", str(checkpoint.spec), "2", claims))


def by_place(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["gate"], row["up"], row["down"], row["pos"]))


def require_proved(found: Recovered, checkpoint: FixtureCheckpoint, to: Path) -> None:
    assert "raw" not in found.rows[0]
    compare(by_place(found.rows), checkpoint, 2)
    validate(found.receipt)
    assert found.ledgers["commit"] == found.ledgers["drain"]
    for receipt in (found.receipt, None):
        report = verified(checkpoint, to, receipt)
        assert (report.verdict, report.output.records) == ("balanced", 1878)


@pytest.mark.parametrize("way", ["phased", "one pass"])
def test_every_record_arrives_once_and_the_receipt_proves_it(
    checkpoint: FixtureCheckpoint, tmp_path: Path, way: str
) -> None:
    to = tmp_path / "out"
    if way == "phased":
        found = phased(wish(checkpoint, to))
    else:
        found, _ = passed(wish(checkpoint, to, one_pass=True))
    require_proved(found, checkpoint, to)


def test_published_per_checkpoint_it_is_the_same(
    checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDR_COMMIT", "per-checkpoint")
    require_proved(phased(wish(checkpoint, tmp_path / "out")), checkpoint, tmp_path / "out")


def test_the_proof_is_that_of_a_table_with_raw_bytes(
    checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = phased(wish(checkpoint, tmp_path / "without"))
    monkeypatch.delenv("CDR_TABLE_RAW")
    whole = phased(wish(checkpoint, tmp_path / "with"))
    assert without.receipt["proof_sha256"] == whole.receipt["proof_sha256"]
    assert [{**row, "raw": None} for row in by_place(whole.rows)] == [
        {**row, "raw": None} for row in by_place(without.rows)
    ]


def test_verify_finds_a_changed_value(checkpoint: FixtureCheckpoint, tmp_path: Path) -> None:
    found = phased(wish(checkpoint, tmp_path / "out"))
    path = next((tmp_path / "out").rglob("*.parquet"))
    table = pq.read_table(path)
    rows = table.to_pylist()
    rows[7]["main"]["f2"] += 1
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    report = verified(checkpoint, tmp_path / "out", found.receipt)
    channels = [(each.channel.up, each.channel.down) for each in report.differences if each.channel]
    assert (report.exit_code, (rows[7]["up"], rows[7]["down"]) in channels) == (2, True)


def until_commit(checkpoint: FixtureCheckpoint, to: Path) -> tuple[Any, str, Any]:
    repository, recovery, settings = inline.start(wish(checkpoint, to))
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL, Phase.DRAIN):
        inline.run(repository, recovery, phase, settings)
    return repository, recovery, settings


def test_a_row_that_never_reached_a_file_keeps_the_commit_from_publishing(
    checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are no bytes to compare, but as many rows as records were drained there must be, in each channel."""
    build = RowBuilder.build
    lost: list[int] = []

    def losing(self: RowBuilder, body: Any) -> pa.RecordBatch:
        batch = build(self, body)
        if not lost and batch.num_rows:
            lost.append(batch.num_rows)
            return batch.slice(1)
        return batch

    monkeypatch.setattr(RowBuilder, "build", losing)
    repository, recovery, settings = until_commit(checkpoint, tmp_path / "out")
    assert lost
    with pytest.raises(Unbalanced):
        inline.run(repository, recovery, Phase.COMMIT, settings)
    assert not (tmp_path / "out" / "_cdr").exists()


def test_a_file_that_was_changed_after_it_was_written_keeps_the_commit_from_publishing(
    checkpoint: FixtureCheckpoint, tmp_path: Path
) -> None:
    repository, recovery, settings = until_commit(checkpoint, tmp_path / "out")
    path = next((tmp_path / "out").rglob("*.parquet"))
    data = path.read_bytes()
    at = data.rindex(b"parquet-cpp")
    path.write_bytes(data[:at] + b"P" + data[at + 1 :])
    with pytest.raises(Unreadable, match="changed after it was written"):
        inline.run(repository, recovery, Phase.COMMIT, settings)


def test_the_choice_is_fixed_when_the_recovery_is_created(
    checkpoint: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, recovery, settings = inline.start(wish(checkpoint, tmp_path / "out"))
    monkeypatch.delenv("CDR_TABLE_RAW")
    with pytest.raises(Refused, match="options"):
        inline.start(wish(checkpoint, tmp_path / "out"))
    assert inline.run_all(repository, recovery, settings)["verdict"] == "balanced"
    assert "raw" not in pq.read_schema(next((tmp_path / "out").rglob("*.parquet"))).names
