"""``cdr generate`` writes Flink's format: Flink's own classes read in it what we read, and a job restores it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.flink.harness import Job, restore, write_oracle
from tests.support.checkpoints import FIXTURES
from tests.support.elements import assert_elements_equal, element_rows
from tests.support.generated import generated

CASES: list[tuple[str, dict[str, Any]]] = [
    ("a", {}),
    ("a", {"version": 3}),
    ("a", {"version": 4}),
    ("a", {"version": 5}),
    ("a", {"inline": True}),
    ("b", {"record_bytes": "30000-40000"}),
    ("d", {"timestamps": True}),
    ("f", {}),
    ("g", {"parallelism": "slow=4,gen=3,gen2=2"}),
]


@pytest.mark.parametrize(
    ("spec", "options"),
    [pytest.param(*case, marks=[] if at == 0 else pytest.mark.soak) for at, case in enumerate(CASES)],
)
def test_flink_reads_a_generated_checkpoint_element_by_element(
    flink: str, tmp_path: Path, spec: str, options: dict[str, Any]
) -> None:
    text = (FIXTURES / "specs" / f"{spec}.yaml").read_text()
    checkpoint = Path(generated(tmp_path / "chk-1", size="300kB", spec=text, buffer="4KiB", **options))
    oracle = write_oracle(checkpoint, text, tmp_path / "oracle.jsonl.gz")
    assert not any(line["partial_left_over"] for line in oracle.lines["channel"])
    assert sum(element.from_state == "input+output" for element in oracle.elements) > 0
    assert assert_elements_equal(checkpoint, text, oracle) > 5


@pytest.mark.parametrize("parallelism", [3, pytest.param(2, marks=pytest.mark.soak)])
def test_flink_restores_a_generated_checkpoint_and_its_job_sees_every_record_once_at_its_owner(
    flink: str, tmp_path: Path, parallelism: int
) -> None:
    """The generated operators have nothing but in-flight data, so that the job's own sources begin at their start."""
    job = Job(records=5, generators=parallelism)
    text = (FIXTURES / "specs" / f"{job.job}.yaml").read_text()
    checkpoint = Path(generated(tmp_path / "chk-1", size="100kB", spec=text, buffer="2KiB", parallelism="3"))
    in_flight = Counter(
        (value["f1"], value["f2"], value["f0"])
        for row in element_rows(checkpoint, text)
        if (value := row["main"]) is not None
    )
    seen = restore(job, checkpoint, parallelism)
    own = Counter((generator, sequence, job.key(generator, sequence)) for generator, sequence in job.all_records)
    assert Counter((sight.generator, sight.sequence, sight.key) for sight in seen.sights) == in_flight + own
    assert all(sight.home for sight in seen.sights)
    assert in_flight.total() > 100
