"""Real checkpoints to every kind of target, all five phases: what its readers see is what Flink read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdr_core.metadata import RecoveryState
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.commit.targets import Target, kinds
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.comparing import compare

PROPERTIES = {"recovery", "commit-user", "commit-id", "epoch", "source-checkpoint", "records", "proof-sha256"}
PROPERTIES |= {"source-metadata-sha256"}


def recover(checkpoint: FixtureCheckpoint, to: str, parallelism: int) -> tuple[Any, str, Any]:
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), str(parallelism), to)
    repository, recovery, settings = inline.start(request)
    result = inline.run_all(repository, recovery, settings)
    assert repository.recovery(recovery).state is RecoveryState.DONE
    return repository, recovery, result


TABLES = pytest.mark.parametrize("empty_target", ["iceberg", "paimon"], indirect=True)


@pytest.mark.parametrize(
    ("empty_target", "name"),
    kinds(also=("a_p3_thr0",)) + kinds("iceberg", "paimon", also=("f_p3_thr0",)),
    indirect=["empty_target"],
)
def test_every_record_arrives_once_and_as_flink_read_it(
    empty_target: Target, fixture_checkpoint: FixtureCheckpoints, name: str
) -> None:
    checkpoint = fixture_checkpoint(name, 2)
    _, recovery, result = recover(checkpoint, empty_target.name, 2)
    assert result["verdict"] == "balanced"
    rows = sorted(empty_target.rows(), key=lambda row: (row["gate"], row["up"], row["down"], row["pos"]))
    compare(rows, checkpoint, 2)
    assert empty_target.commits() == 1
    properties = empty_target.properties()
    assert {name.removeprefix("cdr.") for name in properties if name.startswith("cdr.")} >= PROPERTIES
    assert (properties["cdr.recovery"], properties["cdr.records"]) == (recovery, str(len(rows)))


@TABLES
def test_raw_bytes_are_kept_where_they_are_asked_for(
    empty_target: Target, fixture_checkpoint: FixtureCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDR_TABLE_RAW", "true")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    assert recover(checkpoint, empty_target.name, 2)[2]["verdict"] == "balanced"
    rows = sorted(empty_target.rows(), key=lambda row: (row["gate"], row["up"], row["down"], row["pos"]))
    assert [len(row["raw"]) for row in rows] == [row["length"] for row in rows]
    compare(rows, checkpoint, 2)


@TABLES
def test_a_second_recovery_is_appended_to_the_first(
    empty_target: Target, fixture_checkpoint: FixtureCheckpoints
) -> None:
    for number in (1, 2):
        recover(fixture_checkpoint("a_p3_thr0", number), empty_target.name, 2)
    expected = sum(len(list(fixture_checkpoint("a_p3_thr0", number).oracle.records)) for number in (1, 2))
    assert len(empty_target.rows()) == expected
    assert empty_target.commits() == 2


@TABLES
def test_a_checkpoint_without_records_is_a_publication_of_an_empty_table(
    empty_target: Target, fixture_checkpoint: FixtureCheckpoints
) -> None:
    _, _, result = recover(fixture_checkpoint("c_p7_thr0", 2), empty_target.name, 2)
    assert (result["verdict"], result["records"]) == ("balanced", 0)
    assert (empty_target.rows(), empty_target.commits()) == ([], 1)


def test_a_recovery_to_none_keeps_nothing_and_its_ledger_is_complete(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    repository, recovery, result = recover(checkpoint, "none:", 2)
    assert (result["verdict"], result["records"], result["location"]) == ("balanced", 1878, "none:")
    (entry,) = repository.commit_log(recovery)
    assert (str(entry.state), entry.location) == ("DONE", "none:")
    assert {path.name for path in tmp_path.rglob("*.parquet")} == {"ledger.parquet"}, "of the receipt, no row"


def test_a_recovery_to_none_is_never_unique(fixture_checkpoint: FixtureCheckpoints) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", "none:")
    assert len({inline.start(request)[1] for _ in range(2)}) == 2
