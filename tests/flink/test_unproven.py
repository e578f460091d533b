"""A job that ran at parallelism 1: its records prove no key, and its state's head still tells a wrong type."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdr_core.errors import SpecRefused, UnprovenKey
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.flink.harness import Job, Verdict, judge, make, restore, write_oracle
from tests.support import inline
from tests.support.checkpoints import FIXTURES

SPEC = (FIXTURES / "specs" / "a.yaml").read_text()


def _request(checkpoint: Path, spec: str, to: Path) -> RecoveryRequest:
    return RecoveryRequest(str(checkpoint), spec, "3", f"checkpoint:{to}")


def test_at_parallelism_1_a_wrong_key_is_refused_and_a_trusted_one_restored(flink: str, tmp_path: Path) -> None:
    job = Job(version=flink, job="a", parallelism=1, generators=1)
    checkpoint = make(job, tmp_path / "made").checkpoints[-1]
    for wrong in ("[f0, f1]", "[f3]"):
        with pytest.raises(SpecRefused, match="is keyed by LONG"):
            inline.start(_request(checkpoint, SPEC.replace("[f0]", wrong), tmp_path / "chk-9"))
    for spec in (SPEC, SPEC.replace("[f0]", "[f2]")):
        with pytest.raises(UnprovenKey, match="at parallelism 1"):
            inline.start(_request(checkpoint, spec, tmp_path / "chk-9"), trust_key=False)
    repository, recovery, settings = inline.start(_request(checkpoint, SPEC, tmp_path / "chk-9"))
    with repository:
        assert inline.run_all(repository, recovery, settings)["proven"] is False
    oracle = write_oracle(checkpoint, SPEC, tmp_path / "oracle.jsonl.gz")
    seen = restore(job, tmp_path / "chk-9", 3)
    in_flight = [(record.gen or 0, record.seq or 0) for record in oracle.records]
    assert in_flight
    assert judge(job, in_flight, seen) == Verdict()
