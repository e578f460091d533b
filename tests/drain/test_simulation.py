"""Random schedules of the shipped drain lose nothing; the same schedules catch parts of it that are broken."""

from __future__ import annotations

import pytest

from cdr_core.drain.channel import Marker
from cdr_core.drain.checkpoints import Answer, RecoveryCheckpoints
from cdr_core.drain.drainer import Drainer, Job
from cdr_core.drain.pages import Page
from cdr_core.drain.remaining import Remaining
from cdr_core.errors import Declined
from tests.drain.simulate import Rescale, Schedule, simulate
from tests.drain.support import Lost
from tests.drain.world import Parts

SAMPLE = 400
CATCHES_WITHIN = 300
"""Schedules after which a broken drainer must have been caught."""


def test_no_schedule_loses_repeats_or_hangs() -> None:
    """002-29, 002-12, 003-02, 000-06, 000-07, E21, E22, E33, E34, E61: seeded, replayable; see tests/drain/simulate.py
    for 10,000."""
    happened = simulate(1, SAMPLE)
    for what in ("checkpoints at once", "checkpoints given up", "crashes", "rescales", "in the middle of a delivery"):
        assert happened[what] > 100, f"the schedules hardly ever have {what}"
    for what in ("twins", "tasks at their end", "tasks lost", "storage troubles", "checkpoints subsumed"):
        assert happened[what] > 25, f"the schedules hardly ever have {what}"


def test_a_downscale_from_seven_to_two_loses_nothing() -> None:
    """002-12: two keyed inputs, checkpoints and crashes on both sides of it; --rescale 7:2 runs as many as you like."""
    happened = simulate(1, 100, rescale=Rescale(7, 2))
    assert happened["rescales"] >= 100


def test_a_seed_plays_the_same_schedule_again() -> None:
    first, second = Schedule(17), Schedule(17)
    assert first.run() == second.run()
    assert first.world.committed == second.world.committed


class Racing(Drainer):
    """Can let its own thread run on in the middle of a cut, as it would where the cut held no lock."""

    _running = False

    def step(self, blocking: bool) -> bool:
        if self._running:
            return False
        self._running = True
        try:
            return super().step(blocking)
        finally:
            self._running = False


class CutOutsideTheLock(Racing):
    """Copies the position, and marks the channels only after more was delivered: the page is in both parts."""

    def snapshot_and_insert_markers(self, checkpoint: int) -> Remaining:
        position = self._tail.remaining()
        self.step(blocking=False)
        super().snapshot_and_insert_markers(checkpoint)
        return position


class MarksFirst(Racing):
    """Marks the channels, and copies the position only after more was delivered: the page is in neither part."""

    def snapshot_and_insert_markers(self, checkpoint: int) -> Remaining:
        super().snapshot_and_insert_markers(checkpoint)
        self.step(blocking=False)
        return self._tail.remaining()


class CursorBeforeDelivery(Drainer):
    """Advances when it reads: a cut before the delivery finds the page neither in memory nor in the tail."""

    def _fill(self, page: Page, job: Job) -> Page:
        if not job.parked:
            self._tail.advance(job.rest.take(self._pool.page_size))
        return super()._fill(page, job)

    def _deliver(self, page: Page, job: Job) -> None:
        if job.parked:
            super()._deliver(page, job)
        else:
            job.channel.deliver(page)
            with self._inbox.changed:
                self._inbox.schedule(job.channel)


class LosesMarkers(Drainer):
    """Forgets one channel."""

    def _insert_markers(self, checkpoint: int) -> None:
        for channel in list(self._inbox.channels.values())[1:]:
            if channel.in_recovery:
                channel.mark(checkpoint)


class MarksTooEarly(Drainer):
    """Puts the markers before what lies in the queues."""

    def _insert_markers(self, checkpoint: int) -> None:
        for channel in self._inbox.channels.values():
            if channel.in_recovery:
                channel._entries.appendleft(Marker(checkpoint))


class NeverParks(Drainer):
    """Keeps its pages where nobody reads them."""

    def _reclaim(self) -> bool:
        return False

    def _park(self, job: Job) -> bool:
        return False


@pytest.mark.parametrize(
    ("broken", "caught"),
    [
        (CutOutsideTheLock, Lost),
        (MarksFirst, (Lost, Declined)),
        (CursorBeforeDelivery, Lost),
        (LosesMarkers, Declined),
        (MarksTooEarly, Lost),
        (NeverParks, Lost),
    ],
)
@pytest.mark.parametrize("rescale", [None, Rescale(7, 2)])
def test_the_same_schedules_catch_a_broken_drainer(
    broken: type[Drainer], caught: type[Exception] | tuple[type[Exception], ...], rescale: Rescale | None
) -> None:
    """002-12, E22, 002-41: a harness that finds nothing is believed only when it finds these."""
    with pytest.raises(caught):
        simulate(1, CATCHES_WITHIN, Parts(drainer=broken), rescale)


class AnswersWhatWasPassed(RecoveryCheckpoints):
    """Waits for an answer to an older checkpoint by who has answered a later one; the driver gives it."""

    def unanswered(self, checkpoint: int) -> tuple[int, ...]:
        answers = self._pending[checkpoint].answers
        return tuple(subtask for subtask in self._positions if subtask not in answers)

    def wants(self, answer: Answer) -> bool:
        self._last_cut = dict.fromkeys(self._last_cut, 0)
        return super().wants(answer)


class StaysWhereItIs(RecoveryCheckpoints):
    """Accepts a result and lets others go on from the same position."""

    def finish(self, subtask: int, after: str) -> None:
        self.require(subtask, after)


class CompletesTooEarly(RecoveryCheckpoints):
    """Takes a subtask that has not answered for one that has nothing to say."""

    def ready(self) -> int | None:
        for number in reversed(self._pending):
            if len(self._pending[number].answers) in (len(self._positions), len(self._positions) - 1):
                return number
        return None


class RollsBack(RecoveryCheckpoints):
    """Forgets what was answered to a checkpoint that was given up, and takes its subtasks to be where they were."""

    def abort(self, checkpoint: int, *, counted: bool) -> None:
        for answer in self._pending[checkpoint].answers.values():
            self._positions[answer.subtask] = answer.after
        super().abort(checkpoint, counted=counted)


@pytest.mark.parametrize("broken", [AnswersWhatWasPassed, StaysWhereItIs, CompletesTooEarly, RollsBack])
def test_the_same_schedules_catch_a_broken_coordinator(broken: type[RecoveryCheckpoints]) -> None:
    """E33, E39, 004-13, 004-17: two requests at once and a subtask that finishes; a twin after its end; and so on."""
    with pytest.raises((Lost, KeyError)):
        simulate(1, CATCHES_WITHIN, Parts(coordinator=broken))
