"""A real Flink restores state that was redistributed here, at the new parallelism, and has nothing left to rescale."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from cdr_core.checkpoint_target import state_migration as state
from cdr_core.flink.state import keyed
from tests.flink.fixtures import MADE, STATEFUL
from tests.flink.harness import Job, Verdict, judge, judge_timed, make, restore
from tests.flink.harness.job import go_on
from tests.flink.harness.judge import Seen
from tests.flink.rewriting import recover
from tests.support.checkpoints import FIXTURES, FixtureCheckpoint, FixtureCheckpoints

FEW, MANY, UNION, BROADCAST, ODD = KINDS = range(5)
"""As ``Lists.java`` numbers them."""

KEPT_ELSEWHERE = {
    "compressed": {"execution.checkpointing.snapshot-compression": "true"},
    "rocksdb, full": {"state.backend.type": "rocksdb", "execution.checkpointing.incremental": "false"},
    "rocksdb, full and compressed": {
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "false",
        "execution.checkpointing.snapshot-compression": "true",
    },
    "rocksdb, timers on the heap": {
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
        "state.backend.rocksdb.timer-service.factory": "HEAP",
    },
}

INLINE = 1 << 20
"""More than any of these states has."""


def rewrite(source: Path, spec: Path, parallelism: int, out: Path) -> Path:
    """What cdr makes of it, all that is no record included."""
    recover(source, spec, str(parallelism), out)
    return out


def _restored(original: FixtureCheckpoint, parallelism: int, to: Path) -> Seen:
    seen = restore(Job.of(original.path), rewrite(original.path, original.spec, parallelism, to / "chk-2"), parallelism)
    assert seen.rescaled == 0, "Flink found in-flight data that it had to take apart"
    return seen


def _verdict(original: FixtureCheckpoint, seen: Seen) -> Verdict:
    in_flight = ((record.gen or 0, record.seq or 0) for record in original.oracle.records)
    return judge(Job.of(original.path), in_flight, seen)


def _times(name: str, *parallelisms: int) -> list[object]:
    return [pytest.param(name, each, marks=pytest.mark.soak) for each in parallelisms]


@pytest.mark.parametrize(
    ("name", "parallelism"),
    [
        ("t_p3_timers", 2),
        *_times("t_p3_timers", 5),
        *_times("t_p3_timers_1_20", 2, 5),
        *_times("t_p3_timers_rocksdb", 2, 6),
    ],
)
def test_every_timer_fires_once_and_every_window_is_whole(
    flink: str, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, name: str, parallelism: int
) -> None:
    """Timers and windows live to the end of the job, so these tell of every record there ever was."""
    seen = _restored(fixture_checkpoint(name), parallelism, tmp_path)
    verdict = judge_timed(STATEFUL[name], seen)
    assert verdict.exactly_once, verdict
    assert not judge(STATEFUL[name], (), seen).miscounted


@pytest.mark.soak
@pytest.mark.parametrize("parallelism", [2, 5])
@pytest.mark.parametrize("backend", KEPT_ELSEWHERE)
def test_timers_are_right_wherever_flink_keeps_them(flink: str, tmp_path: Path, backend: str, parallelism: int) -> None:
    """In ways of which no checkpoint is shipped."""
    job = replace(STATEFUL["t_p3_timers"], flink=KEPT_ELSEWHERE[backend])
    made = make(job, tmp_path / "made").checkpoints[-1]
    seen = restore(job, rewrite(made, FIXTURES / "specs" / "t.yaml", parallelism, tmp_path / "chk-2"), parallelism)
    assert seen.rescaled == 0
    verdict = judge_timed(job, seen)
    assert verdict.exactly_once, verdict


@pytest.mark.soak
@pytest.mark.parametrize("claim", ["NO_CLAIM", "CLAIM"])
@pytest.mark.parametrize("name", ["t_p3_timers", "t_p3_timers_rocksdb"])
def test_a_restored_job_takes_checkpoints_that_are_redistributed_again(
    flink: str, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, name: str, claim: str
) -> None:
    """From 3 to 2 (of RocksDB's snapshots in baskets), on for a while, from 2 to 3, to the end."""
    original = fixture_checkpoint(name)
    job = replace(STATEFUL[name], flink={**STATEFUL[name].flink, "execution.state-recovery.claim-mode": claim})
    first = rewrite(original.path, original.spec, 2, tmp_path / "first")
    later = go_on(replace(job, fill_millis=3000, checkpoints=1), first, 2, tmp_path / "later").checkpoints[-1]
    seen = restore(job, rewrite(later, original.spec, 3, tmp_path / "second"), 3)
    assert seen.rescaled == 0
    verdict = judge_timed(job, seen)
    assert verdict.exactly_once, verdict


@pytest.mark.soak
def test_heap_snapshots_that_are_not_merged_are_restored_from_a_basket(
    flink: str, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when subtasks list different states."""
    monkeypatch.setattr(keyed, "_alike", lambda *_: False)
    seen = _restored(fixture_checkpoint("t_p3_timers"), 2, tmp_path)
    verdict = judge_timed(STATEFUL["t_p3_timers"], seen)
    assert verdict.exactly_once, verdict


@pytest.mark.soak
def test_flinks_own_rescaling_is_told_apart_and_judged_alike(
    flink: str, fixture_checkpoint: FixtureCheckpoints
) -> None:
    original = fixture_checkpoint("t_p3_timers")
    seen = restore(STATEFUL["t_p3_timers"], original.path, 2)
    assert seen.rescaled > 0
    assert judge_timed(STATEFUL["t_p3_timers"], seen).exactly_once


@pytest.mark.soak
@pytest.mark.parametrize("inline", [0, INLINE])
@pytest.mark.parametrize("parallelism", [2, 5])
@pytest.mark.parametrize("name", ["l_p3_lists", "l_p3_lists_compressed"])
def test_operator_state_of_every_kind_is_where_it_belongs(
    flink: str,
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    parallelism: int,
    inline: int,
) -> None:
    """In files of their own, and in ``_metadata``."""
    monkeypatch.setattr(state, "INLINE", inline)
    original = fixture_checkpoint(name)
    seen = _restored(original, parallelism, tmp_path)
    assert _verdict(original, seen) == Verdict()
    given = [
        {kind: [(by, number) for at, by, number in rows if at == kind] for kind in KINDS}
        for (of, _), rows in sorted(seen.others.items())
        if of == "lists"
    ]
    assert len(given) == parallelism
    filled = range(STATEFUL[name].parallelism)
    split = {
        FEW: [by + 1 for by in filled],
        MANY: [100 + 10 * by for by in filled],
        ODD: [5 * (by % 2) for by in filled],  # which the files of the others do not even name
    }
    for kind, counts in split.items():
        wanted = Counter((by, number) for by in filled for number in range(counts[by]))
        assert sum((Counter(each[kind]) for each in given), Counter()) == wanted
        sizes = [len(each[kind]) for each in given]
        assert max(sizes) - min(sizes) <= 1
    for each in given:
        assert Counter(each[UNION]) == Counter((by, number) for by in filled for number in range(4 + by))
        assert sorted(each[BROADCAST]) == [(number, number * number) for number in range(20)]


@pytest.mark.soak
@pytest.mark.parametrize("parallelism", [2, 5])
def test_a_source_that_has_ended_stays_ended(
    flink: str, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, parallelism: int
) -> None:
    original = fixture_checkpoint("g_p3_finished_source")
    seen = _restored(original, parallelism, tmp_path)
    assert _verdict(original, seen) == Verdict()
    assert not any(generator >= 100 for generator in seen.first), "the second source began anew"


@pytest.mark.soak
@pytest.mark.parametrize("parallelism", [1, 3, 4])
@pytest.mark.parametrize("name", [name for name in MADE if name.startswith("a_p2_")])
def test_state_of_every_backend_is_cut_and_merged(
    flink: str, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, name: str, parallelism: int
) -> None:
    """From 2: to 4 every range lies inside an old one, to 1 all merge, to 3 the middle one needs a part of both."""
    original = fixture_checkpoint(name)
    assert _verdict(original, _restored(original, parallelism, tmp_path)) == Verdict()


@pytest.mark.soak
@pytest.mark.parametrize("name", ["v4_a_p3_back_pressure", "v5_a_p3_back_pressure", "v6_a_p3_back_pressure"])
def test_state_of_every_version_is_restored(
    flink: str, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, name: str
) -> None:
    original = fixture_checkpoint(name)
    assert _verdict(original, _restored(original, 2, tmp_path)) == Verdict()
