"""A worker's memory is bounded by its settings: a sample of what ``make bench ARGS=memory`` measures in earnest."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.benchmarks.inputs import checkpoint
from tests.benchmarks.memory import OVERHEAD, bounded
from tests.support.bucket import Bucket

BUDGET = 2 << 20
SIZE = 50 * BUDGET


@pytest.mark.seed("000-01", "002-35")
@pytest.mark.timeout(600)
# On S3 almost nothing of the overhead is left, so a busy machine can miss it: that case is for quiet machines.
@pytest.mark.parametrize("source", ["disk", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.soak])])
def test_a_state_of_fifty_budgets_is_recovered_in_one(
    tmp_path: Path, source: str, request: pytest.FixtureRequest
) -> None:
    """All of it goes to one subtask and so through one task of spill, drain and commit each."""
    folder = checkpoint(tmp_path / "chk", SIZE, "4", "900-1100")
    address = str(folder)
    if source == "s3":
        bucket: Bucket = request.getfixturevalue("bucket")
        address = bucket.upload(folder)
        shutil.rmtree(folder)
    found = bounded(address, "1", f"parquet:{tmp_path / 'out'}", BUDGET)
    assert found.verdict == "balanced"
    assert found.most <= BUDGET + OVERHEAD, {phase: held >> 20 for phase, held in found.by_phase.items()}
