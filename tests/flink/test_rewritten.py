"""A real Flink restores what cdr wrote into ``checkpoint:DIR``, at the new parallelism, and rescales nothing itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cdr_core.checkpoint_target.export import export_checkpoint
from cdr_core.metadata import RecoveryCheckpointState
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.verify.checkpoint import Channel, Checkpoint
from cdr_core.verify.spec import read_spec
from tests.audit.recovered import spoil_tag
from tests.flink.harness import Job, Verdict, go_on, judge, make, restore, write_oracle
from tests.flink.harness.java import FlinkFailed
from tests.flink.rewriting import NEW_RECORDS, in_flight, recover
from tests.support import draining, inline
from tests.support.bucket import Bucket, key_of
from tests.support.checkpoints import FIXTURES, FixtureCheckpoint, FixtureCheckpoints
from tests.support.oracle import Element

FIXTURE = "v6_a_p3_back_pressure"


def require_restored(source: FixtureCheckpoint, rewritten: Path, parallelism: int) -> None:
    """Every record in flight once, at its owner, in order; per-key state right; nothing left to rescale."""
    job = Job.of(source.path)
    seen = restore(job, rewritten, parallelism)
    assert seen.rescaled == 0, "Flink found in-flight data that it had to take apart"
    assert judge(job, in_flight(source), seen) == Verdict()


@pytest.mark.parametrize(
    ("name", "parallelism"),
    [
        (FIXTURE, 2),
        *(
            pytest.param(name, parallelism, marks=pytest.mark.soak)
            for name, parallelism in [
                (FIXTURE, 5),
                (FIXTURE, 3),
                ("v4_a_p3_back_pressure", 2),
                ("v5_a_p3_back_pressure", 5),
            ]
        ),
    ],
)
def test_a_checkpoint_at_a_new_parallelism_is_restored_exactly_once(
    flink: str, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, name: str, parallelism: int
) -> None:
    source = fixture_checkpoint(name)
    recover(source.path, source.spec, str(parallelism), tmp_path / "chk-2")
    require_restored(source, tmp_path / "chk-2", parallelism)


@pytest.mark.soak
@pytest.mark.parametrize("parallelism", [2, 5])
def test_output_state_that_became_input_state_is_restored_exactly_once(
    flink: str,
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parallelism: int,
) -> None:
    monkeypatch.setenv("CDR_RECOVER_OUTPUT_DOWNSTREAM", "true")
    source = fixture_checkpoint(FIXTURE)
    assert recover(source.path, source.spec, str(parallelism), tmp_path / "chk-2")["checkpoint"]["output_state"] == (
        "downstream"
    )
    require_restored(source, tmp_path / "chk-2", parallelism)


@pytest.mark.soak
@pytest.mark.parametrize("parallelism", [2, 3])
def test_a_checkpoint_from_s3_to_s3_is_restored_exactly_once(
    flink: str, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, bucket: Bucket, parallelism: int
) -> None:
    """Brought here to be restored: the packages that Flink comes in cannot read S3."""
    source, target = fixture_checkpoint(FIXTURE), bucket.uri()
    recover(bucket.upload(source.path), source.spec, str(parallelism), target)
    here = tmp_path / "chk-2"
    for key in bucket.keys(target):
        file = here / key.removeprefix(f"{key_of(target)}/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bucket.get(f"{target}/{file.relative_to(here)}"))
    require_restored(source, here, parallelism)


@pytest.mark.soak
@pytest.mark.parametrize(
    "name",
    [
        "a_p2_rocksdb_incremental",
        "a_p2_forst_incremental",
        "a_p2_changelog_files",
        "a_p2_changelog_memory",
        "a_p2_file_merging",
    ],
)
def test_a_checkpoint_of_any_backend_is_restored_at_the_same_parallelism(
    flink: str, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, name: str
) -> None:
    source = fixture_checkpoint(name)
    receipt = recover(source.path, source.spec, "same", tmp_path / "chk-2")
    assert receipt["checkpoint"]["copied"] or receipt["checkpoint"]["depends_on"] or "memory" in name
    require_restored(source, tmp_path / "chk-2", 2)


_INLINE = {"execution.checkpointing.data-inline-threshold": "1mb"}

MADE = {
    "keyed strings, 3 to 2": (Job(records=9000), "a", 2),
    "keyed strings, 3 to 5": (Job(records=9000), "a", 5),
    "keyed strings, 3 as it is": (Job(records=9000), "a", 3),
    "keyed strings on RocksDB, 3 as it is": (
        Job(records=9000, flink={"state.backend.type": "rocksdb", "execution.checkpointing.incremental": "true"}),
        "a",
        3,
    ),
    "large records, 3 to 2": (Job(job="d", shortest=32000, longest=33500, records=6000, pause_micros=2000), "d", 2),
    "rebalanced, 4 to 3": (Job(job="d", parallelism=4, generators=4, records=9000, timestamps=False), "d", 3),
    "keyed strings inline, 3 to 5": (
        Job(records=9000, flink=_INLINE),
        "a",
        5,
    ),
    "two keyed inputs, 7 to 2": (Job(job="g", parallelism=7, generators=7, records=4000), "g", 2),
    "two keyed inputs, 4 to 6": (Job(job="g", parallelism=4, generators=4, records=6000), "g", 6),
    "two keyed inputs inline, 7 to 2": (
        Job(job="g", parallelism=7, generators=7, records=4000, flink=_INLINE),
        "g",
        2,
    ),
    "rebalanced inline, 4 to 3": (
        Job(job="d", parallelism=4, generators=4, records=9000, timestamps=False, flink=_INLINE),
        "d",
        3,
    ),
    "keyed strings on Flink 1.20, 3 to 5": (Job(version="1.20.5", records=9000), "a", 5),
    "keyed strings on Flink 2.0, 3 to 2": (Job(version="2.0.2", records=9000), "a", 2),
    "two keyed inputs on Flink 1.20, 4 to 3": (
        Job(version="1.20.5", job="g", parallelism=4, generators=4, records=6000),
        "g",
        3,
    ),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", MADE)
def test_a_job_of_any_shape_goes_on_where_it_was(flink: str, tmp_path: Path, name: str) -> None:
    """Restored at the new parallelism; thousands of new records later it takes a checkpoint, which cdr recovers to the
    old parallelism; restored again, it runs to its end. The counts of every key tell of the whole way.
    """
    job, letter, parallelism = MADE[name]
    first = make(job, tmp_path / "made").checkpoints[-1]
    spec = FIXTURES / "specs" / f"{letter}.yaml"
    rewritten = tmp_path / "rewritten" / "chk"
    assert recover(first, spec, str(parallelism), rewritten)["records"]["source"] > 0
    seen = restore(job, rewritten, parallelism)
    assert seen.rescaled == 0
    before = write_oracle(first, spec.read_text(), tmp_path / "first.jsonl.gz")
    waiting = [(record.gen or 0, record.seq or 0) for record in before.records]
    verdict = judge(job, waiting, seen)
    assert verdict == Verdict()
    assert verdict.processed >= len(waiting) + NEW_RECORDS
    later = replace(job, checkpoints=1, pause_micros=1000, after_records=len(waiting) + NEW_RECORDS)
    second = go_on(later, rewritten, parallelism, tmp_path / "went-on").checkpoints[-1]
    again = tmp_path / "again" / "chk"
    assert recover(second, spec, str(job.parallelism), again)["records"]["source"] > 0
    after = write_oracle(second, spec.read_text(), tmp_path / "second.jsonl.gz")
    last = restore(job, again, job.parallelism)
    assert last.rescaled == 0
    assert judge(job, ((record.gen or 0, record.seq or 0) for record in after.records), last) == Verdict()


def test_what_is_left_out_is_all_that_is_missing(
    flink: str, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    """A poison record taken out; and a channel that Flink cannot read, its rest put aside."""
    source = fixture_checkpoint(FIXTURE)
    damaged = source.copy(tmp_path / "damaged" / "chk-2")
    poison, broken = _spoiled(source, damaged)
    with pytest.raises(FlinkFailed, match="Corrupt stream, found tag: 85"):
        restore(Job.of(source.path), damaged, 3)
    drop = f"main:{poison.channel.up}:{poison.channel.down}:{poison.pos}"
    out = tmp_path / "chk-2"
    receipt = recover(damaged, source.spec, "same", out, on_corrupt="quarantine", drop_records=(drop,))
    (aside,) = receipt["proof"]["quarantine"]
    assert receipt["verdict"] == "partial"
    gone = [e for e in source.oracle.by_channel[broken.channel][aside["from_pos"] :] if e.is_record]
    missing = sorted((e.gen or 0, e.seq or 0) for e in (poison, *gone))
    job = Job.of(source.path)
    seen = restore(job, out, 3)
    verdict = judge(job, in_flight(source), seen)
    counted = tuple(sorted({job.key(*identity) for identity in missing}))
    assert verdict == Verdict(lost=tuple(missing), miscounted=counted), "a key that lost a record counts fewer"
    assert seen.rescaled == 0


def _spoiled(source: FixtureCheckpoint, copy: Path) -> tuple[Element, Element]:
    """A record to be taken out, and one of another channel that has a tag now which no element has."""
    channels = sorted(source.oracle.by_channel.items(), key=lambda item: len(item[1]))
    poison = next(e for e in channels[0][1] if e.is_record)
    at, elements = channels[-1]
    broken = [e for e in elements if e.is_record][len(elements) // 3]
    with Checkpoint(str(copy)) as opened:
        (exchange,) = read_spec(str(source.spec))
        found = opened.elements(exchange, Channel("main", at.up, at.down)).whole()
        spoil_tag(copy, found.data[found.starts[broken.pos] : found.ends[broken.pos]])
    return poison, broken


@pytest.mark.soak
@pytest.mark.parametrize("parallelism", [2, 3])
def test_a_recovery_checkpoint_exported_in_the_middle_of_a_drain_is_restored(
    flink: str,
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parallelism: int,
) -> None:
    """The target of the recovery is a table: what is exported is a checkpoint all the same."""
    draining.make_slow(monkeypatch)
    source = fixture_checkpoint(FIXTURE)
    request = RecoveryRequest(
        str(source.path), str(source.spec), str(parallelism), f"parquet:{tmp_path / 'table'}", "20ms"
    )
    repository, recovery, _ = draining.spilled(request)
    with repository:
        killed = draining.drain_in_child(recovery, "drain.before-result=kill", inline.ThreadedWorkers(1))
        assert draining.exit_status(killed) == -9
        complete = [row for row in repository.checkpoints(recovery) if row.state is RecoveryCheckpointState.COMPLETED]
        export_checkpoint(repository, recovery, complete[-1].checkpoint_id, str(tmp_path / "chk-2"))
    require_restored(source, tmp_path / "chk-2", parallelism)
