"""Whether a recovery through Airflow came out right, whatever was done to it on the way."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema

from cdr_core.metadata import AttemptState, Phase, PhaseState, RecoveryState
from cdr_core.sweep.decide import Why
from tests.airflow.live import Live, Run, wait_for
from tests.conftest import ROOT
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.output import manifest

Rows = Counter[tuple[int, int, int, int]]


def expected_rows(checkpoints: FixtureCheckpoints) -> Rows:
    """Every record of the shipped checkpoint, on the subtask that Flink would give it at parallelism 2."""
    records = checkpoints("a_p3_thr0", 2).oracle.records
    return Counter((r.channel.up, r.channel.down, r.pos, r.owner(2)) for r in records)


def assert_right(run: Run, expected: Rows) -> None:
    """Every record published once, where it belongs; a balanced receipt; each phase done by one attempt; nothing
    left."""
    recovery = run.recovery
    assert run.published() == expected
    assert_attempts_are_in_order(run.live, recovery)
    receipt = json.loads(done(run.live, "receipt", recovery))
    assert_receipt(receipt, expected.total())
    assert_nothing_left(run.live, recovery, run.output)


def assert_attempts_are_in_order(live: Live, recovery: str) -> None:
    with live.repository() as repository:
        row = repository.recovery(recovery)
        attempts = repository.attempts(recovery)
        phases = {phase.name: phase.state for phase in repository.phases(recovery)}
    assert row.state is RecoveryState.DONE
    assert phases == dict.fromkeys(Phase, PhaseState.DONE)
    epochs = [attempt.epoch for attempt in attempts]
    assert epochs == list(range(1, row.epoch + 1)), "each attempt has taken the next epoch, and nobody else has"
    assert Counter(attempt.phase for attempt in attempts if attempt.state is AttemptState.DONE) == Counter(Phase)
    assert not [attempt for attempt in attempts if attempt.state is AttemptState.RUNNING]


def assert_receipt(receipt: dict[str, Any], records: int) -> None:
    schema = json.loads((ROOT / "docs" / "receipt.schema.json").read_text())
    jsonschema.validate(receipt, schema)
    assert receipt["verdict"] == "balanced"
    assert receipt["records"] == {"source": records, "published": records}
    assert receipt["fingerprint"]["source"] == receipt["fingerprint"]["published"]


def assert_nothing_left(live: Live, recovery: str, output: Path) -> None:
    """No process of it, no file of a dead attempt, no data file that the manifest does not list."""
    wait_for("the end of every process", lambda: not live.processes_of(recovery), 60)
    listed = manifest(output)
    assert listed is not None
    files = {str(path.relative_to(output)) for path in output.rglob("*.parquet")}
    assert files == {file["path"] for file in listed["files"]}
    swept = json.loads(done(live, "sweep", "--dry-run", "--json"))
    ours = [left for left in swept["leftovers"] if left["recovery"] == recovery]
    # The workspace of a finished recovery goes with the next sweep; nothing of it may lie in the target.
    assert {left["why"] for left in ours} <= {Why.FINISHED}
    assert [left["path"] for left in ours if Path(left["path"]).is_relative_to(output)] == []


def done(live: Live, *arguments: str) -> str:
    """What ``cdr`` prints; it must succeed."""
    answer = live.cdr(*arguments)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout
