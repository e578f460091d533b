"""Random schedules of the shipped drain lose nothing; the same schedules catch engines that are broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cdr_core.commit.committable import PreparedFile
from cdr_core.drain.checkpoint_driver import DrainWatch
from cdr_core.drain.drain_state import DrainState
from cdr_core.drain.resume import Progress
from cdr_core.drain.routed_delivery import RoutedSegments
from cdr_core.drain.segment_elements import SegmentElements
from cdr_core.drain.snapshots import CutEntry, Snapshot, Snapshots, StoredSnapshot, newest_of
from cdr_core.drain.subtask_output import Output
from cdr_core.drain.task import DrainTask
from cdr_core.errors import CdrError
from cdr_core.spill.buffer_pool import Buffers
from cdr_core.spill.router import Route
from cdr_core.spill.set_reader import Segment
from tests.drain.simulate import Schedule, simulate
from tests.drain.world import Lost, Parts

Bytes = npt.NDArray[np.uint8]

SAMPLE = 300
CATCHES_WITHIN = 400
"""Schedules after which a broken engine must have been caught."""


def test_no_schedule_loses_repeats_or_hangs() -> None:
    """002-29, 002-12, 003-02, E21, E22, E33, E34: seeded, replayable; see tests/drain/simulate.py for 10,000."""
    happened = simulate(1, SAMPLE)
    for what in ("crashes", "requests", "checkpoints completed", "storage troubles"):
        assert happened[what] > 100, f"the schedules hardly ever have {what}"
    rarer = "twins", "tasks lost", "tasks overtaken", "sets made again", "checkpoints subsumed", "scratch lost"
    for what in (*rarer, "segments spilled and replayed"):
        assert happened[what] > 15, f"the schedules hardly ever have {what}"


def test_a_seed_plays_the_same_schedule_again() -> None:
    first, second = Schedule(17), Schedule(17)
    assert first.run() == second.run()
    assert first.world.closed == second.world.closed


class RepeatingCut(DrainState):
    """Its cuts say what was delivered before the last segment, which is in the files already."""

    _before: dict[str, Any] | None = None

    def taken(self, segment: Segment, skip: Any) -> SegmentElements:
        self._before = super().to_columns()
        return super().taken(segment, skip)

    def to_columns(self) -> dict[str, Any]:
        return self._before or super().to_columns()


class CutOffByOne(DrainState):
    """Its cuts say that one element more of each line was delivered."""

    def to_columns(self) -> dict[str, Any]:
        columns = super().to_columns()
        return {**columns, "delivered": columns["delivered"] + 1}


class CutBeforeDurable(DrainTask):
    """Creates the snapshot first and closes the file afterwards."""

    def _snapshot(self, state: DrainState, output: Output[Any], *, final: bool = False) -> Snapshot:
        open_file = output._output
        if open_file is None:
            return super()._snapshot(state, output, final=final)
        name: Any = open_file[1]
        output._files.append(PreparedFile(name.name, len(name.lines), sum(map(len, name.lines)), 0))
        kept, output._output = output._output, None
        made = super()._snapshot(state, output, final=final)
        self._snapshots.listed()  # here a crash may come
        output._output = kept
        output.close_file()
        output.take_files()
        return made


class SnapshotOfTheOpenFile(DrainTask):
    """Counts what lies in the open file and does not name it."""

    def _snapshot(self, state: DrainState, output: Output[Any], *, final: bool = False) -> Snapshot:
        if final or output._output is None:
            return super()._snapshot(state, output, final=final)
        kept, output._output = output._output, None
        made = super()._snapshot(state, output, final=final)
        output._output = kept
        return made


class IgnoresTheChain(Snapshots):
    """A starting task begins at its base, whatever its predecessor has made durable."""

    def take_over(self, unit: str, subtask: int, task: str, base: Any) -> Snapshot:
        taken = super().take_over(unit, subtask, task, base)
        return taken if taken.cut.final else replace(taken, cut=base())


class NeverLoses(Snapshots):
    """A task whose next number is taken goes on all the same."""

    def create(self, unit: str, snapshot: Snapshot) -> StoredSnapshot:
        while True:
            try:
                return super().create(unit, snapshot)
            except CdrError:
                snapshot = replace(snapshot, number=newest_of(self.listed())[unit] + 1)


class LosesTheSummary(Snapshots):
    """Removes what a complete checkpoint refers to, too."""

    def remove(self, uris: list[str]) -> None:
        for unit, number in self.listed():
            self._storage.delete(self.uri(unit, number))


class MixesTwoSnapshots(DrainWatch):
    """Takes the files of the newest snapshot and the cut of the one before."""

    def _take(self, unit: str, subtask: int, number: int) -> None:
        before: CutEntry = self._progress[subtask].entry
        super()._take(unit, subtask, number)
        after = self._progress[subtask]
        if not after.entry.final and before.snapshot:
            self._progress[subtask] = Progress(before, after.output, after.number)


class OvertakesWhatIsOnDisk(RoutedSegments):
    """The output takes what waits in memory first."""

    def take(self) -> tuple[int, Segment | None]:
        first = next((entry for entry in self.waiting if entry.segment is not None), self.waiting[0])
        self.waiting.remove(first)
        self.waiting.appendleft(first)
        return super().take()

    def way(self) -> Route:
        return Route.MEMORY if len(self.waiting) < self._ahead else Route.DISK


class NeverReplays(RoutedSegments):
    """What is on scratch disk when the output takes a segment is forgotten."""

    def take(self) -> tuple[int, Segment | None]:
        number, segment = super().take()
        while self.waiting and self.waiting[0].segment is None:
            super().take()
        return number, segment


class SwapsMemoryAndDisk(RoutedSegments):
    """What is on scratch disk comes first, although it was read later."""

    def take(self) -> tuple[int, Segment | None]:
        first = next((entry for entry in self.waiting if entry.segment is None), self.waiting[0])
        self.waiting.remove(first)
        self.waiting.appendleft(first)
        return super().take()


class ReusesTooEarly(Buffers):
    """Gives out memory that somebody still looks at."""

    def filled(self, size: int, fill: Callable[[memoryview], None]) -> Bytes:
        if not self._free:
            self._free.append(np.empty(1 << 16, np.uint8))
        fill(self._free[0].data[:size])
        return self._free[0][:size]


@pytest.mark.parametrize(
    "broken",
    [
        Parts(state=RepeatingCut),
        Parts(state=CutOffByOne),
        Parts(task=CutBeforeDurable),
        Parts(task=SnapshotOfTheOpenFile),
        Parts(snapshots=IgnoresTheChain),
        Parts(snapshots=NeverLoses),
        Parts(snapshots=LosesTheSummary),
        Parts(watch=MixesTwoSnapshots),
        Parts(routed=OvertakesWhatIsOnDisk),
        Parts(routed=NeverReplays),
        Parts(routed=SwapsMemoryAndDisk),
        Parts(buffers=ReusesTooEarly),
    ],
    ids=lambda parts: next(
        each.__name__ for each in (getattr(parts, field.name) for field in fields(Parts)) if each.__module__ == __name__
    ),
)
def test_the_same_schedules_catch_a_broken_engine(broken: Parts) -> None:
    """002-12, E22, 004-13: a harness that finds nothing is believed only when it finds these."""
    with pytest.raises((Lost, CdrError)):
        simulate(1, CATCHES_WITHIN, broken)
