"""Operators of which some subtasks have finished, others not: cdr re-writes the checkpoint, a real Flink goes on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cdr_core.flink.operator_id import operator_id_of_uid
from cdr_core.verify.verify import Request, verify
from tests.flink.harness import Job, Verdict, go_on, judge, make, restore, write_oracle
from tests.flink.harness.java import FlinkFailed
from tests.flink.harness.judge import Identity, Seen
from tests.flink.shapes import HASHED, KEYED, in_flight, rewritten, spec_of

JOB = Job(sources=3, ending=1, ending_records=60, records=9000, checkpoints=3, fill_millis=1500)
"""A subtask at its end waits for a checkpoint; for the next one it has finished."""

BEHIND_MIDDLE = spec_of(("main", "tail", 0, "slow", 0, HASHED))


@dataclass(frozen=True)
class Partly:
    """A checkpoint, what was in flight there, and by operator which of its subtasks had finished."""

    job: Job
    spec: str
    checkpoint: Path
    waiting: list[Identity]
    finished: Mapping[str, set[int]]

    @classmethod
    def made(cls, job: Job, spec: str, folder: Path, *uids: str) -> Partly:
        """Of each of these operators, and of no other, some subtasks have finished and others not."""
        checkpoint = make(job, folder / "made").checkpoints[-1]
        found = finished(checkpoint, folder)
        assert found.keys() == {operator_id_of_uid(uid) for uid in uids}, found
        assert all(0 < len(subtasks) < job.parallelism for subtasks in found.values()), found
        waiting = in_flight(checkpoint, spec, folder)
        assert len(waiting) > 100
        return cls(job, spec, checkpoint, waiting, found)

    def restored(self, wish: str, sources: int, parallelism: int, folder: Path) -> Seen:
        """What a Flink saw that went on from what cdr wrote: every record once, nothing rescaled."""
        out = rewritten(self.checkpoint, self.spec, wish, folder)
        report = verify(Request(str(self.checkpoint), f"checkpoint:{out}", str(folder / "spec.yaml"), ""))
        assert report.verdict == "balanced", report.differences
        seen = restore(replace(self.job, sources=sources), out, parallelism)
        assert (seen.rescaled, judge(self.job, self.waiting, seen)) == (0, Verdict())
        assert not seen.first.keys() & {*range(self.job.ending)}, "a generator that was at its end began anew"
        return seen


def finished(checkpoint: Path, folder: Path) -> Mapping[str, set[int]]:
    """By Flink's own classes."""
    found: dict[str, set[int]] = defaultdict(set)
    for line in write_oracle(checkpoint, None, folder / "metadata.jsonl.gz").lines.get("finished_subtask", ()):
        found[line["operator_id"]].add(line["subtask"])
    return found


@pytest.fixture(scope="module")
def source(flink: str, tmp_path_factory: pytest.TempPathFactory) -> Partly:
    return Partly.made(JOB, KEYED, tmp_path_factory.mktemp("source"), "gen-numbers", "gen")


@pytest.fixture(scope="module")
def middle(flink: str, tmp_path_factory: pytest.TempPathFactory) -> Partly:
    """Also behind the source: a vertex of two operators, one of which has no state and nothing in flight."""
    uids = "gen-numbers", "gen", "mid", "tail"
    return Partly.made(replace(JOB, job="m"), BEHIND_MIDDLE, tmp_path_factory.mktemp("middle"), *uids)


def _wish(sources: int, parallelism: int) -> str:
    return f"gen={sources},gen-numbers={sources},slow={parallelism}"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("wish", "sources", "parallelism"),
    [
        ("same", 3, 3),
        ("1", 1, 1),
        ("2", 2, 2),
        ("5", 5, 5),
        *((_wish(*ends), *ends) for ends in [(3, 2), (3, 5), (2, 3), (5, 3)]),
    ],
)
def test_a_source_of_which_some_subtasks_have_finished_goes_on(
    source: Partly, tmp_path: Path, wish: str, sources: int, parallelism: int
) -> None:
    source.restored(wish, sources, parallelism, tmp_path)
    said = finished(tmp_path / "rewritten" / "chk", tmp_path)
    assert said == (source.finished if wish == "same" else {})


@pytest.mark.soak
@pytest.mark.parametrize("version", ["1.20.5", "2.0.2"])
def test_older_flinks_go_on_as_well(flink: str, tmp_path: Path, version: str) -> None:
    partly = Partly.made(replace(JOB, version=version), KEYED, tmp_path, "gen-numbers", "gen")
    for parallelism in (2, 3):
        (folder := tmp_path / str(parallelism)).mkdir()
        partly.restored(str(parallelism), parallelism, parallelism, folder)


@pytest.mark.soak
@pytest.mark.parametrize("parallelism", [2, 3, 5])
def test_flink_by_itself_goes_on_likewise(source: Partly, parallelism: int) -> None:
    """Or there would be nothing to be as good as."""
    seen = restore(replace(JOB, sources=parallelism), source.checkpoint, parallelism)
    assert judge(JOB, source.waiting, seen) == Verdict()
    assert (seen.rescaled > 0) == (parallelism != JOB.parallelism)


@pytest.mark.soak
def test_more_subtasks_than_splits_finish_early_and_are_recovered_again(source: Partly, tmp_path: Path) -> None:
    """Two generators are left for five subtasks; the checkpoint that follows is brought back to three."""
    out = rewritten(source.checkpoint, KEYED, "5", tmp_path)
    later = replace(JOB, sources=5, checkpoints=2, pause_micros=4000)
    second = go_on(later, out, 5, tmp_path / "later").checkpoints[-1]
    assert {len(subtasks) for subtasks in finished(second, tmp_path).values()} == {3}
    (folder := tmp_path / "again").mkdir()
    again = Partly(JOB, KEYED, second, in_flight(second, KEYED, folder), {})
    again.restored("3", 3, 3, folder)


@pytest.mark.soak
@pytest.mark.parametrize("parallelism", [2, 3, 5])
def test_a_subtask_at_its_end_whose_records_are_still_in_flight_is_not_lost(
    flink: str, tmp_path: Path, parallelism: int
) -> None:
    """It has nothing more to say and waits for the checkpoint, which holds its last records."""
    job = replace(JOB, ending_records=400, pause_micros=20_000, checkpoints=1, fill_millis=3000)
    checkpoint = make(job, tmp_path / "made").checkpoints[-1]
    assert finished(checkpoint, tmp_path) == {}
    waiting = in_flight(checkpoint, KEYED, tmp_path)
    assert (0, job.ending_records - 1) in waiting
    assert {generator for generator, _ in waiting} == {0, 1, 2}
    Partly(job, KEYED, checkpoint, waiting, {}).restored(str(parallelism), parallelism, parallelism, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("wish", "sources", "parallelism"),
    [
        ("same", 3, 3),
        ("2", 2, 2),
        ("5", 5, 5),
        ("gen=2,gen-numbers=2", 2, 3),
        ("tail=2,slow=2", 3, 2),  # who reads the spec knows nothing of the operator before the tail
    ],
)
def test_a_chain_behind_a_source_of_which_some_subtasks_have_finished_goes_on(
    middle: Partly, tmp_path: Path, wish: str, sources: int, parallelism: int
) -> None:
    """Flink restores no vertex of which some subtasks have finished behind one that runs as a whole, and none whose
    operators tell different stories.
    """
    seen = middle.restored(wish, sources, parallelism, tmp_path)
    gone = middle.finished[operator_id_of_uid("tail")]
    wanted = Counter((by, number) for by in range(3) if by not in gone for number in range(4))
    assert _told(seen.others, "middle") == wanted


def _told(others: Mapping[tuple[str, int], Iterable[tuple[int, ...]]], what: str) -> Counter[tuple[int, ...]]:
    return sum((Counter(rows) for (name, _), rows in others.items() if name == what), Counter())


@pytest.mark.soak
def test_windows_are_whole_and_nothing_is_late_behind_a_source_of_which_some_subtasks_have_finished(
    flink: str, tmp_path: Path
) -> None:
    """The last word of those on time was that it is over; it has been heard, and is said again after a restore."""
    partly = Partly.made(replace(JOB, job="w", keys=50), KEYED, tmp_path, "gen-numbers", "gen")
    out = rewritten(partly.checkpoint, KEYED, "2", tmp_path)
    by_cdr, by_flink = (restore(replace(partly.job, sources=2), each, 2) for each in (out, partly.checkpoint))
    assert (by_cdr.rescaled, by_flink.rescaled > 0) == (0, True)
    assert _told(by_cdr.others, "late") == Counter()
    whole = [Counter((key, start, n) for key, start, n, _ in _told(by.others, "windows")) for by in (by_cdr, by_flink)]
    assert whole[0] == whole[1]
    assert max(whole[0].values()) == 1


@pytest.mark.soak
def test_flink_takes_no_checkpoint_of_union_state_some_of_whose_subtasks_have_ended(flink: str, tmp_path: Path) -> None:
    """So that there is none for cdr to move."""
    with pytest.raises(FlinkFailed, match=r"tail.* has used UnionListState, but part of its tasks"):
        make(replace(JOB, job="v"), tmp_path / "made")
