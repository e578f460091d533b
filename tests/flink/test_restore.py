"""A real Flink restores a checkpoint at another parallelism, and every record is accounted for."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdr_core.flink.channel_state import ChannelId
from tests.flink.doctor import Edit, edit_input, first_element
from tests.flink.fixtures import MADE
from tests.flink.harness import Job, Verdict, judge, restore
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.oracle import Element

FIXTURE = "v6_a_p3_back_pressure"
CHANNEL = ChannelId(0, 0, 2)
"""Of the slow operator: subtask 0, gate 0, from upstream 2."""


def _restore(original: FixtureCheckpoint, checkpoint: Path, parallelism: int) -> Verdict:
    """Judged by what was in flight in the original, whatever became of it in the checkpoint that is restored."""
    job = Job.of(original.path)
    in_flight = ((record.gen or 0, record.seq or 0) for record in original.oracle.records)
    return judge(job, in_flight, restore(job, checkpoint, parallelism))


def _first_record(checkpoint: FixtureCheckpoint) -> Element:
    ours = [elements for at, elements in checkpoint.oracle.by_channel.items() if (at.down, at.up) == (0, 2)]
    assert ours[0][0].is_record
    return ours[0][0]


def _cut(state: bytes) -> bytes:
    return state[len(first_element(state)) :]


def _double(state: bytes) -> bytes:
    return first_element(state) + state


def test_flinks_own_rescaling_is_exactly_once(flink: str, fixture_checkpoint: FixtureCheckpoints) -> None:
    checkpoint = fixture_checkpoint(FIXTURE)
    verdict = _restore(checkpoint, checkpoint.path, 2)
    assert verdict == Verdict()
    assert verdict.processed > len(checkpoint.oracle.by_channel) * 50


@pytest.mark.soak
@pytest.mark.parametrize("parallelism", [1, 3, 5])
@pytest.mark.parametrize("name", MADE)
def test_every_checkpoint_made_here_can_be_restored_at_any_parallelism(
    flink: str, fixture_checkpoint: FixtureCheckpoints, name: str, parallelism: int
) -> None:
    checkpoint = fixture_checkpoint(name)
    assert _restore(checkpoint, checkpoint.path, parallelism) == Verdict()


@pytest.mark.parametrize(("edit", "wrong"), [(_cut, "lost"), pytest.param(_double, "repeated", marks=pytest.mark.soak)])
def test_a_record_too_few_or_too_many_is_named(
    flink: str, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, edit: Edit, wrong: str
) -> None:
    original = fixture_checkpoint(FIXTURE)
    doctored = original.copy(tmp_path / "chk-2")
    edit_input(doctored, "slow", CHANNEL, edit)
    record = _first_record(original)
    verdict = _restore(original, doctored, 2)
    assert not verdict.exactly_once
    assert getattr(verdict, wrong) == ((record.gen, record.seq),)
    assert verdict.miscounted == (record.key,)
    assert not verdict.extra


def test_an_edit_that_changes_nothing_is_exactly_once(
    flink: str, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    """Or the test above could not tell a cut record from a file that Flink misreads."""
    original = fixture_checkpoint(FIXTURE)
    rewritten = original.copy(tmp_path / "chk-2")
    edit_input(rewritten, "slow", CHANNEL, bytes)
    assert _restore(original, rewritten, 2) == Verdict()
