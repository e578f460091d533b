"""Checkpoints made on the spot: of every job, by every Flink, with records in flight that we read as Flink does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flink.harness import Job, Verdict, judge, make, restore, write_oracle
from tests.flink.harness.packages import FLINKS
from tests.support.checkpoints import FIXTURES
from tests.support.elements import assert_elements_equal

JOBS = {
    "a": Job(parallelism=2, generators=2, checkpoints=1),
    "d": Job(job="d", parallelism=2, generators=2, checkpoints=1, timestamps=False, shortest=20, longest=600),
    "g": Job(job="g", parallelism=2, generators=2, checkpoints=1),
}


@pytest.mark.soak
@pytest.mark.parametrize("version", FLINKS)
@pytest.mark.parametrize("name", JOBS)
def test_a_job_leaves_records_in_flight_and_goes_on_from_them(
    flink: str, tmp_path: Path, version: str, name: str
) -> None:
    job = Job(**{**vars(JOBS[name]), "version": version})
    spec = (FIXTURES / "specs" / f"{name}.yaml").read_text()
    (checkpoint,) = make(job, tmp_path / "checkpoints").checkpoints
    oracle = write_oracle(checkpoint, spec, tmp_path / "oracle.jsonl.gz")
    assert {element.from_state for element in oracle.elements} == {"input", "input+output", "output"}
    assert assert_elements_equal(checkpoint, spec, oracle) > 300
    in_flight = ((record.gen or 0, record.seq or 0) for record in oracle.records)
    assert judge(job, in_flight, restore(job, checkpoint, 3)) == Verdict()
