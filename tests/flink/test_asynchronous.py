"""State of asynchronous access: ForSt's is kept and cut, and refused where ranges merge; that of others is merged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cdr_core.errors import PlanRefused
from cdr_core.flink.state.keyed import KeyedPlan
from tests.flink.harness import Job, Verdict, judge, restore
from tests.flink.harness.java import FlinkFailed
from tests.flink.shapes import KEYED, ROCKSDB, in_flight, made, rewritten

ASYNCHRONOUS = {
    # Or thousands of records would have left the channels before the slow operator takes the first of them.
    "execution.async-state.total-buffer-size": "10",
    "execution.async-state.active-buffer-size": "5",
    "execution.async-state.active-buffer-timeout": "5",
}
FORST = {**ASYNCHRONOUS, "state.backend.type": "forst", "execution.checkpointing.incremental": "true"}
JOB = Job(job="n", parallelism=2, sources=2, generators=2, checkpoints=1, fill_millis=3000, flink=FORST)


@pytest.fixture(scope="module")
def checkpoint(flink: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(JOB, tmp_path_factory.mktemp("asynchronous"))


@pytest.mark.soak
@pytest.mark.parametrize(("wish", "parallelism"), [("same", 2), ("4", 4)])
def test_state_of_asynchronous_access_is_kept_and_cut(
    checkpoint: Path, tmp_path: Path, wish: str, parallelism: int
) -> None:
    waiting = in_flight(checkpoint, KEYED, tmp_path)
    assert len(waiting) > 100
    seen = restore(replace(JOB, sources=parallelism), rewritten(checkpoint, KEYED, wish, tmp_path), parallelism)
    assert (seen.rescaled, judge(JOB, waiting, seen)) == (0, Verdict())


@pytest.mark.soak
@pytest.mark.parametrize("wish", ["1", "3"])
def test_state_of_asynchronous_access_is_refused_where_ranges_merge(
    checkpoint: Path, tmp_path: Path, wish: str
) -> None:
    with pytest.raises(PlanRefused, match="asynchronous state access") as refused:
        rewritten(checkpoint, KEYED, wish, tmp_path)
    assert refused.value.where.operator == "slow"
    assert "same" in refused.value.hint


@pytest.mark.soak
def test_flink_takes_no_several_snapshots_where_access_is_asynchronous(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is why they are refused: what goes into a basket is restored by the changelog's backend."""
    monkeypatch.setattr(KeyedPlan, "_asynchronous", lambda *_: False)
    out = rewritten(checkpoint, KEYED, "1", tmp_path)
    with pytest.raises(FlinkFailed, match="Don't support createAsyncKeyedStateBackend"):
        restore(replace(JOB, sources=1), out, 1)


@pytest.mark.soak
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("backend", [{}, ROCKSDB], ids=["heap", "rocksdb"])
def test_backends_that_only_pretend_to_be_asynchronous_are_merged(
    flink: str, tmp_path: Path, backend: dict[str, str], parallelism: int
) -> None:
    job = replace(JOB, flink={**ASYNCHRONOUS, **backend})
    checkpoint = made(job, tmp_path)
    waiting = in_flight(checkpoint, KEYED, tmp_path)
    out = rewritten(checkpoint, KEYED, str(parallelism), tmp_path)
    seen = restore(replace(job, sources=parallelism), out, parallelism)
    assert (seen.rescaled, judge(job, waiting, seen)) == (0, Verdict())
