"""A target that stops answering while it is drained into: checkpoints complete, and nothing is lost or done twice."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cdr_core.metadata import Command, CommandState, Phase, Repository
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.support import inline, output
from tests.support.bucket import NAME, Bucket
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.draining import Started, drain_in_child, exit_status, make_slow, spilled
from tests.support.stuck import HoldingProxy, frozen_disk
from tests.support.victim import assert_each_record_once

SECONDS = 60.0
"""To wait for anything at most. How fast an answer comes is measured by a benchmark, not here."""
RECORDS = 1878


def ready_to_drain(checkpoint: FixtureCheckpoint, to: str, monkeypatch: pytest.MonkeyPatch, mode: str) -> Started:
    make_slow(monkeypatch, "drain.page=sleep:0.01")
    monkeypatch.setenv("CDR_COMMIT", mode)
    return spilled(RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", to, "100ms"))


def wait_for(what: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < deadline, why
        time.sleep(0.01)


def answered(repository: Repository, recovery: str) -> Command:
    """A checkpoint that is asked for now, when it has its answer."""
    asked = repository.request(recovery, "checkpoint", {"aligned_timeout": None})
    found: list[Command] = []

    def is_answered() -> bool:
        found[:] = [each for each in repository.commands(recovery) if each.id == asked.id and each.answered_at]
        return bool(found)

    wait_for(is_answered, "the checkpoint waits for the target")
    return found[0]


def progress(repository: Repository, recovery: str) -> bool:
    """Whether a complete checkpoint holds output of the drain."""
    return any(row.records for row in repository.prepared(recovery))


def finish_and_compare(started: Started, rows: Callable[[], int]) -> None:
    """A new attempt goes on from the checkpoint that completed while the target did not answer."""
    repository, recovery, settings = started
    before = sum(row.records for row in repository.prepared(recovery))
    inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
    done_again = sum(unit.result["records_here"] for unit in repository.units(recovery, Phase.DRAIN))
    assert before > 0
    assert done_again <= RECORDS - before, "what the checkpoint holds is not drained again"
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    assert rows() == RECORDS


def published(bucket: Bucket, table: str) -> list[dict[str, Any]]:
    """The rows of a table on S3."""
    manifest = max(key for key in bucket.keys(f"{table}/_cdr/manifest-") if key.endswith(".json"))
    files = json.loads(bucket.get(f"s3://{NAME}/{manifest}"))["files"]
    tables = [pq.read_table(BytesIO(bucket.get(f"{table}/{file['path']}"))) for file in files]
    return [row for each in tables for row in each.to_pylist()]


@pytest.mark.parametrize("mode", ["at-end", "per-checkpoint"])
def test_with_a_frozen_target_a_checkpoint_completes_and_a_killed_drain_goes_on_from_it(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """002-18, 003-03, 003-06: a request overtakes output that is blocked; killed, nothing is lost or duplicated."""
    with frozen_disk(tmp_path) as disk:
        started = ready_to_drain(fixture_checkpoint("a_p3_thr0", 2), f"parquet:{disk.path}/out", monkeypatch, mode)
        repository, recovery, _ = started
        child = drain_in_child(recovery, "nothing=raise")
        try:
            wait_for(lambda: progress(repository, recovery), "the drain makes no progress")
            disk.freeze()
            time.sleep(0.5)  # its tasks come to the next close of a file, and wait there
            answer = answered(repository, recovery)
            assert answer.state is CommandState.DONE
        finally:
            os.kill(child, signal.SIGKILL)
            disk.thaw()
        assert exit_status(child) == -signal.SIGKILL
        finish_and_compare(started, lambda: len(output.rows(disk.path / "out")))
        assert_each_record_once(disk.path / "out")
        repository.close()


def test_while_an_upload_is_held_back_a_checkpoint_completes_and_a_killed_drain_goes_on_from_it(
    fixture_checkpoint: FixtureCheckpoints, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """002-18, 003-03, 003-06: the same before an S3 server; the uploads of the killed drain never arrive."""
    proxy = HoldingProxy(int(bucket.endpoint.rpartition(":")[2]))
    monkeypatch.setenv("CDR_S3_ENDPOINT", proxy.endpoint)
    to = bucket.uri()
    started = ready_to_drain(fixture_checkpoint("a_p3_thr0", 2), f"parquet:{to}/out", monkeypatch, "at-end")
    repository, recovery, _ = started
    child = drain_in_child(recovery, "nothing=raise")
    try:
        wait_for(lambda: progress(repository, recovery), "the drain makes no progress")
        proxy.hold()
        assert proxy.held.wait(SECONDS), "no upload came"
        answer = answered(repository, recovery)
        assert answer.state is CommandState.DONE
    finally:
        os.kill(child, signal.SIGKILL)
        assert exit_status(child) == -signal.SIGKILL
        proxy.close()
    monkeypatch.setenv("CDR_S3_ENDPOINT", bucket.endpoint)
    finish_and_compare(started, lambda: len(published(bucket, f"{to}/out")))
    rows = published(bucket, f"{to}/out")
    assert len({(row["gate"], row["up"], row["down"], row["pos"]) for row in rows}) == RECORDS
    repository.close()
