"""The driver's view of recovery checkpoints: who answers, what completes, what is given up."""

from __future__ import annotations

import pytest

from cdr_core.drain.checkpoints import FINISHED, START, Answer, Outcome, RecoveryCheckpoints, Rules
from cdr_core.errors import CheckpointsFailed, JobFailed


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def fresh(
    subtasks: int = 2, *, interval: float = 0, timeout: float = 10, tolerable: int = 1
) -> tuple[Clock, RecoveryCheckpoints]:
    clock = Clock()
    positions = dict.fromkeys(range(subtasks), START)
    return clock, RecoveryCheckpoints(positions, 0, Rules(interval, timeout, tolerable), clock)


def cut(checkpoint: int, subtask: int, after: str = START, position: str | None = None) -> Answer:
    return Answer(checkpoint, subtask, Outcome.CUT, after, position or f"{checkpoint}-{subtask}")


def test_a_checkpoint_is_ready_only_when_every_subtask_has_answered() -> None:
    """E39: one missing answer is not "nothing to do"."""
    _, checkpoints = fresh()
    number = checkpoints.trigger()
    assert checkpoints.receive(cut(number, 0))
    assert checkpoints.ready() is None
    assert checkpoints.unanswered(number) == (1,)
    assert checkpoints.receive(cut(number, 1))
    assert checkpoints.ready() == number


def test_an_answer_counts_once() -> None:
    _, checkpoints = fresh()
    number = checkpoints.trigger()
    assert checkpoints.receive(cut(number, 0))
    assert not checkpoints.receive(cut(number, 0, position="other"))
    assert checkpoints.position(0) == f"{number}-0"


def test_completing_one_subsumes_the_older_ones_and_they_never_complete_afterwards() -> None:
    """E33: nested checkpoints."""
    _, checkpoints = fresh()
    first, second = checkpoints.trigger(), checkpoints.trigger()
    assert checkpoints.receive(cut(first, 0))
    assert checkpoints.receive(cut(second, 0, after=f"{first}-0"))
    assert checkpoints.receive(cut(second, 1))
    assert checkpoints.ready() == second
    assert checkpoints.complete(second) == [first]
    assert not checkpoints.receive(cut(first, 1, after=f"{second}-1"))
    assert checkpoints.ready() is None


def test_an_answer_that_continues_another_position_is_refused_loudly() -> None:
    """004-13: of two living attempts at one subtask only one can go on."""
    _, checkpoints = fresh()
    first = checkpoints.trigger()
    assert checkpoints.receive(cut(first, 0))
    assert checkpoints.receive(cut(first, 1))
    checkpoints.complete(first)
    second = checkpoints.trigger()
    with pytest.raises(JobFailed, match="two attempts at once"):
        checkpoints.receive(cut(second, 0, after=START))
    with pytest.raises(JobFailed, match="two attempts at once"):
        checkpoints.require(1, START)
    checkpoints.require(1, f"{first}-1")


def test_the_driver_answers_at_the_position_where_a_subtask_is_and_moves_nothing() -> None:
    _, checkpoints = fresh()
    number = checkpoints.trigger()
    assert checkpoints.receive(Answer(number, 0, Outcome.CUT, START, START))
    assert checkpoints.position(0) == START
    checkpoints.require(0, START)


def test_not_ready_is_not_counted_declined_is() -> None:
    """002-41: two distinct outcomes."""
    _, checkpoints = fresh(tolerable=1)
    for _ in range(5):
        number = checkpoints.trigger()
        assert checkpoints.receive(Answer(number, 0, Outcome.NOT_READY, START, START, reason="spilling"))
        assert [answer.outcome for answer in checkpoints.refusals()] == [Outcome.NOT_READY]
        checkpoints.abort(number, counted=False)
    number = checkpoints.trigger()
    assert checkpoints.receive(Answer(number, 0, Outcome.DECLINED, START, START, reason="a marker is missing"))
    checkpoints.abort(number, counted=True)
    with pytest.raises(CheckpointsFailed, match="2 recovery checkpoints in a row"):
        checkpoints.abort(checkpoints.trigger(), counted=True)


def test_a_complete_checkpoint_forgives_the_failed_ones_before_it() -> None:
    _, checkpoints = fresh(1, tolerable=1)
    checkpoints.abort(checkpoints.trigger(), counted=True)
    number = checkpoints.trigger()
    assert checkpoints.receive(cut(number, 0))
    checkpoints.complete(number)
    checkpoints.abort(checkpoints.trigger(), counted=True)


def test_an_answer_that_comes_after_its_checkpoint_was_given_up_still_moves_the_subtask() -> None:
    """004-17, E30: abort is not rollback: what was prepared for it stays pending."""
    clock, checkpoints = fresh(timeout=10)
    first = checkpoints.trigger()
    clock.now = 10
    assert checkpoints.overdue() == [first]
    checkpoints.abort(first, counted=True)
    assert checkpoints.open == (first,)
    assert checkpoints.receive(cut(first, 0))
    second = checkpoints.trigger()
    assert checkpoints.receive(cut(second, 0, after=f"{first}-0"))
    assert checkpoints.receive(cut(second, 1))
    assert checkpoints.ready() == second


def test_the_interval_asks_for_one_at_a_time_and_zero_asks_for_none() -> None:
    clock, checkpoints = fresh(interval=5)
    assert not checkpoints.is_due()
    clock.now = 5
    assert checkpoints.is_due()
    number = checkpoints.trigger()
    clock.now = 20
    assert not checkpoints.is_due(), "one is under way"
    for subtask in (0, 1):
        checkpoints.receive(cut(number, subtask))
    checkpoints.complete(number)
    assert checkpoints.is_due()
    never, quiet = fresh(interval=0)
    never.now = 1e9
    assert not quiet.is_due()


def test_numbers_go_on_from_the_last_one_of_any_attempt() -> None:
    checkpoints = RecoveryCheckpoints({0: START}, 7, Rules(0, 1, 0), Clock())
    assert checkpoints.trigger() == 8


def passed_by_the_first() -> tuple[Clock, RecoveryCheckpoints, int, int]:
    """Two under way; subtask 0 has answered the later one only."""
    clock, checkpoints = fresh(timeout=10, tolerable=0)
    first = checkpoints.trigger()
    clock.now = 5
    second = checkpoints.trigger()
    assert checkpoints.receive(cut(second, 0))
    return clock, checkpoints, first, second


def test_a_subtask_that_answered_a_later_one_is_never_counted_for_an_older_one() -> None:
    """E33: its later output under the lower number would be published before its earlier output."""
    _, checkpoints, first, second = passed_by_the_first()
    assert checkpoints.is_passed(first)
    assert checkpoints.unanswered(first) == (1,)
    assert not checkpoints.receive(cut(first, 0, after=f"{second}-0"))
    assert checkpoints.receive(cut(first, 1))
    assert checkpoints.ready() is None
    assert checkpoints.receive(cut(second, 1, after=f"{first}-1"))
    assert checkpoints.complete(second) == [first]


def test_a_checkpoint_that_was_passed_has_the_time_of_the_later_one_and_is_not_counted_beside_it() -> None:
    clock, checkpoints, first, second = passed_by_the_first()
    clock.now = 10
    assert checkpoints.overdue() == []
    assert checkpoints.stranded() == []
    clock.now = 15
    assert checkpoints.overdue() == [second]
    checkpoints.abort(second, counted=False)
    assert checkpoints.stranded() == [first]


def test_only_the_driver_answers_for_a_subtask_whose_result_was_accepted() -> None:
    """004-13: the other of two attempts at the same position is late; it is neither counted nor in the way."""
    _, checkpoints = fresh()
    checkpoints.finish(0, START)
    assert checkpoints.position(0) == FINISHED
    number = checkpoints.trigger()
    assert not checkpoints.receive(cut(number, 0))
    assert not checkpoints.receive(Answer(number, 0, Outcome.DECLINED, START, START, reason="by the other one"))
    assert checkpoints.unanswered(number) == (0, 1)
    assert checkpoints.receive(cut(number, 0, after=FINISHED, position=FINISHED))
    assert checkpoints.receive(cut(number, 1))
    assert checkpoints.ready() == number
    with pytest.raises(JobFailed, match="two attempts at once"):
        checkpoints.finish(0, START)


def test_an_answer_survives_its_way_through_a_file() -> None:
    answer = Answer(3, 1, Outcome.DECLINED, "2-x", "2-x", {"files": []}, "why")
    assert Answer.from_json(answer.to_json()) == answer
