"""Who is told after a commit: every commit once in effect, whatever dies in between."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdr_core.commit.listeners import Listeners, Notice, PartitionDone, listeners_for
from cdr_core.targets import Target
from tests.commit.coordination import World, entry


class Recorder:
    """Counts, and dies before or after its effect when told to."""

    name = "recorder"

    def __init__(self) -> None:
        self.effects: set[int] = set()
        self.told: list[int] = []
        self.dies = ""

    def committed(self, notice: Notice) -> None:
        if self.dies == "before":
            raise KeyboardInterrupt
        self.told.append(notice.commit_id)
        self.effects.add(notice.commit_id)
        if self.dies == "after":
            raise KeyboardInterrupt


def test_a_listener_is_told_of_every_commit_in_order_and_its_state_is_saved() -> None:
    recorder = Recorder()
    world = World(listeners=[recorder])
    for number in (1, 2, 3):
        world.hand(entry(0, number, f"a{number}" if number != 2 else ""), entry(1, number))
    world.complete(3)
    assert recorder.told == [1, 2, 3]
    assert world.store.saved == {"recorder": {"up_to": 3}}


@pytest.mark.seed("004-22", "E51")
@pytest.mark.parametrize("dies", ["before", "after"])
def test_killed_between_commit_and_effect_or_before_its_state_is_saved_it_is_told_again(dies: str) -> None:
    """The effect is idempotent, so twice told is once done."""
    recorder = Recorder()
    world = World(listeners=[recorder])
    world.hand(entry(0, 1, "a"), entry(1, 1))
    recorder.dies = dies
    with pytest.raises(KeyboardInterrupt):
        world.complete(1)
    assert (world.target.ids, world.store.saved) == ([1], None)
    recorder.dies = ""
    world.restart(1)
    assert recorder.effects == {1}
    assert world.store.saved == {"recorder": {"up_to": 1}}
    world.restart(1)
    assert recorder.told.count(1) <= 2, "what its state says it has seen is not told again"


def test_a_commit_without_output_is_not_told() -> None:
    recorder = Recorder()
    world = World(listeners=[recorder])
    world.hand(entry(0, 1), entry(1, 1))
    world.complete(1)
    world.restart(1)
    assert recorder.told == []


def test_states_of_listeners_that_are_gone_are_kept() -> None:
    listeners = Listeners([Recorder()], {"another": {"up_to": 9}})
    listeners.tell(Notice(4, 1, None))
    assert listeners.states == {"another": {"up_to": 9}, "recorder": {"up_to": 4}}


def test_the_done_marker_says_what_was_committed_and_is_created_once(tmp_path: Path) -> None:
    (marker,) = listeners_for(Target.parse(f"parquet:{tmp_path}/out/"), "r-1")
    marker.committed(Notice(3, 17, 1000))
    file = tmp_path / "out" / "_cdr" / "done" / "r-1-3.json"
    before = file.read_bytes()
    marker.committed(Notice(3, 99, None))
    assert file.read_bytes() == before
    said = json.loads(before)
    assert (said["recovery"], said["commit_id"], said["records"], said["watermark"]) == ("r-1", 3, 17, 1000)
    assert isinstance(marker, PartitionDone)


@pytest.mark.parametrize("target", ["iceberg:lake/db.rows", "paimon:/warehouse/db.rows", "none:"])
def test_targets_that_are_no_directory_have_no_marker(target: str) -> None:
    assert listeners_for(Target.parse(target), "r-1") == ()
