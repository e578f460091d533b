"""The shipped checkpoints of every kind, made elsewhere: cdr re-writes them, a real Flink goes on, and again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.flink.harness import Job, Verdict, go_on, judge, restore, write_oracle
from tests.flink.rewriting import NEW_RECORDS, in_flight, recover
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints

AGGREGATION = "308dea0bcb8d4cff9f3035193e1b010e"

ROCKSDB = {"state.backend.type": "rocksdb", "execution.checkpointing.incremental": "true"}

CASES = [
    ("a_p3_thr0", 2),
    ("a_p3_thr0", 3),
    ("a_p3_thr0", 5),
    ("a_p3_thr1mb", 2),
    ("a_p3_thr1mb", 3),
    ("a_p3_thr1mb", 5),
    ("b_p3_thr0", 2),
    ("d_p4_thr0", 3),
    ("e_p4_seg32k", 6),
    ("f_p3_thr0", 2),
    ("f_p3_thr0", 5),
    ("g_p7_thr0", 2),
    ("r_p3_rocks_inc_true", 2),
    ("r_p3_rocks_inc_true", 3),
    ("r_p3_rocks_inc_true", 5),
]


def job_of(source: FixtureCheckpoint) -> Job:
    """With so many records that thousands are still to come, half of them while it goes on."""
    letter, parallelism = source.name[0].replace("r", "a"), int(source.name.split("_")[1].removeprefix("p"))
    large = letter == "b"
    last: dict[int, int] = {}
    for generator, sequence in in_flight(source):
        last[generator] = max(sequence, last.get(generator, 0))
    return Job(
        job=letter,
        shipped=True,
        parallelism=parallelism,
        generators=parallelism,
        records=max(last.values()) + 2 * NEW_RECORDS // len(last),
        keys=20000 if letter == "e" else 1000,
        shortest=32000 if large else 50,
        longest=33500 if large else 200,
        timestamps=letter != "d",
        pause_micros=500,
        checkpoints=1,
        fill_millis=0,
        flink=ROCKSDB if source.name.startswith("r") else {},
    )


@pytest.mark.soak
@pytest.mark.parametrize(("name", "parallelism"), CASES)
def test_a_shipped_checkpoint_is_restored_goes_on_and_is_recovered_again(
    flink: str, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, name: str, parallelism: int
) -> None:
    source = fixture_checkpoint(name)
    job, waiting = job_of(source), in_flight(source)
    rewritten = tmp_path / "rewritten" / "chk-2"
    recover(source.path, source.spec, str(parallelism), rewritten)
    seen = restore(job, rewritten, parallelism)
    verdict = judge(job, waiting, seen)
    assert (seen.rescaled, verdict) == (0, Verdict())
    assert verdict.processed >= len(waiting) + NEW_RECORDS
    later = replace(job, after_records=len(waiting) + NEW_RECORDS)
    second = go_on(later, rewritten, parallelism, tmp_path / "went-on").checkpoints[-1]
    again = tmp_path / "again" / "chk"
    # Planners number the operators of SQL anew; their ids stay.
    spec = tmp_path / "spec.yaml"
    spec.write_text(source.spec.read_text().replace("'GroupAggregate[6]'", AGGREGATION))
    assert recover(second, spec, str(job.parallelism), again)["verdict"] == "balanced"
    last = restore(job, again, job.parallelism)
    assert last.rescaled == 0
    if job.job == "f":  # whose operators have no uids for an oracle to go by; counts tell of every record all the same
        verdict = judge(job, (), last)
        assert (verdict.miscounted, verdict.out_of_order, verdict.repeated, verdict.lost) == ((), (), (), ())
        return
    after = write_oracle(second, source.spec.read_text(), tmp_path / "second.jsonl.gz")
    assert judge(job, ((record.gen or 0, record.seq or 0) for record in after.records), last) == Verdict()
