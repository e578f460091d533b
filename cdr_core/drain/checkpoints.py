"""Recovery checkpoints as the drain's driver sees them: what was asked, who has answered, what may complete.

Each subtask has a **position**: the cut its records after which are still to come. A position is created by a subtask's
own answer and names it; an answer says which position it continues. Of two attempts at one subtask that both live (a
lost executor that was not dead) only one can continue the current position, so the other's answers are recognised
and refused here, and its output is never counted. A subtask that does not run (it waits for a core, or it is finished)
is answered for by the driver, at the position where it is. Once a subtask's result is accepted its position is one that
no task can continue: whatever another attempt at it still says is void.

A subtask answers in ascending order, and only the newest of several requests that wait. What it hands over later must
not carry a lower number, or the output would be published in another order: a checkpoint that a subtask has *passed*
is never answered for it, and ends together with the later one.

A pure state machine: files, rows and the clock belong to whoever drives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cdr_core.errors import CheckpointsFailed, JobFailed

START = "start"
"""The position of a subtask of which nothing has been drained."""
FINISHED = "finished"
"""The position of a subtask whose result was accepted: nothing goes on from it."""


class Outcome(StrEnum):
    """What a subtask says to a request. NOT_READY is asked again later and not counted; DECLINED is counted."""

    CUT = "CUT"
    NOT_READY = "NOT_READY"
    DECLINED = "DECLINED"


@dataclass(frozen=True, slots=True)
class Answer:
    """A subtask's answer to one request. ``body`` (output, remaining, ledger) is not looked at here."""

    checkpoint: int
    subtask: int
    outcome: Outcome
    after: str
    position: str
    body: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "checkpoint": self.checkpoint,
            "subtask": self.subtask,
            "outcome": str(self.outcome),
            "after": self.after,
            "position": self.position,
            "body": dict(self.body),
            "reason": self.reason,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Answer:
        return cls(
            value["checkpoint"],
            value["subtask"],
            Outcome(value["outcome"]),
            value["after"],
            value["position"],
            value["body"],
            value["reason"],
        )


@dataclass(frozen=True, slots=True)
class Rules:
    """When checkpoints are taken and given up: seconds between two (0 = only when asked), seconds one may take, and
    how many may fail one after another before the attempt does.
    """

    interval: float
    timeout: float
    tolerable: int


@dataclass(slots=True)
class Pending:
    """A checkpoint that was asked for. It completes when every subtask has answered CUT."""

    checkpoint: int
    deadline: float
    answers: dict[int, Answer] = field(default_factory=dict)


class RecoveryCheckpoints:
    """The checkpoints of one drain attempt. Numbers grow over all attempts of a recovery."""

    def __init__(
        self, positions: Mapping[int, str], last: int, rules: Rules, clock: Callable[[], float], failed: int = 0
    ) -> None:
        self._positions = dict(positions)
        self._last = last
        self._rules, self._clock = rules, clock
        self._failed = failed
        self._pending: dict[int, Pending] = {}
        self._late: dict[int, Pending] = {}
        self._last_cut = dict.fromkeys(positions, 0)
        self._next_at = clock() + rules.interval

    @property
    def pending(self) -> tuple[int, ...]:
        """Numbers of the checkpoints that are under way, ascending."""
        return tuple(self._pending)

    @property
    def open(self) -> tuple[int, ...]:
        """Numbers to which answers may still come: those under way, and those given up that no later one replaced."""
        return tuple(sorted({**self._late, **self._pending}))

    def position(self, subtask: int) -> str:
        return self._positions[subtask]

    def is_due(self) -> bool:
        """Whether the interval asks for a new one; never while one is under way."""
        return self._rules.interval > 0 and not self._pending and self._clock() >= self._next_at

    def trigger(self) -> int:
        """A new checkpoint, possibly while older ones are under way; its number."""
        self._last += 1
        now = self._clock()
        self._pending[self._last] = Pending(self._last, now + self._rules.timeout)
        self._next_at = now + self._rules.interval
        return self._last

    def unanswered(self, checkpoint: int) -> tuple[int, ...]:
        """Subtasks whose answer to a pending checkpoint is missing; one that has passed it gives none."""
        answers = self._pending[checkpoint].answers
        return tuple(s for s in self._positions if s not in answers and self._last_cut[s] < checkpoint)

    def is_passed(self, checkpoint: int) -> bool:
        """Whether a subtask has cut a later checkpoint and not this one: it can end only with a later one."""
        answers = self._pending[checkpoint].answers
        return any(last > checkpoint and subtask not in answers for subtask, last in self._last_cut.items())

    def answers(self, checkpoint: int) -> Sequence[Answer]:
        """All answers of a checkpoint that is ready, by subtask."""
        answers = self._pending[checkpoint].answers
        return [answers[subtask] for subtask in sorted(answers)]

    def wants(self, answer: Answer) -> bool:
        """Whether an answer can count: not when it was taken before, nor when its subtask has passed this checkpoint or
        has finished without it.
        """
        pending = self._pending.get(answer.checkpoint) or self._late.get(answer.checkpoint)
        if pending is None or answer.subtask in pending.answers:
            return False
        position = self._positions[answer.subtask]
        overtaken = position == FINISHED and answer.after != position
        return not overtaken and self._last_cut[answer.subtask] < answer.checkpoint

    def receive(self, answer: Answer) -> bool:
        """Take an answer; ``False`` when it does not count. One that continues another position is refused loudly:
        two attempts at one subtask would both be counted.
        """
        if not self.wants(answer):
            return False
        if answer.outcome is Outcome.CUT:
            self.require(answer.subtask, answer.after)
            self._positions[answer.subtask] = answer.position
            self._last_cut[answer.subtask] = answer.checkpoint
        pending = self._pending.get(answer.checkpoint) or self._late[answer.checkpoint]
        pending.answers[answer.subtask] = answer
        return True

    def finish(self, subtask: int, after: str) -> None:
        """Its result, which goes on from ``after``, is accepted: from now on only the driver answers for it."""
        self.require(subtask, after)
        self._positions[subtask] = FINISHED

    def require(self, subtask: int, after: str) -> None:
        """The one way to go on from a position; anything else comes from an attempt that was overtaken."""
        if self._positions[subtask] != after:
            raise JobFailed(
                f"subtask {subtask} was drained by two attempts at once: one goes on from {after}, "
                f"but {self._positions[subtask]} was reached",
                hint="run the phase again, it goes on from the last complete recovery checkpoint",
            )

    def refusals(self) -> list[Answer]:
        """Per pending checkpoint the first answer that is not a cut: it cannot complete."""
        refused = []
        for pending in self._pending.values():
            refusal = next((a for a in pending.answers.values() if a.outcome is not Outcome.CUT), None)
            if refusal is not None:
                refused.append(refusal)
        return refused

    def overdue(self) -> list[int]:
        """Pending checkpoints whose time is over; those that were passed have the time of the later ones."""
        now = self._clock()
        return [n for n, pending in self._pending.items() if now >= pending.deadline and not self.is_passed(n)]

    def stranded(self) -> list[int]:
        """Pending checkpoints that were passed, with no later one to end with."""
        last = max(self._pending, default=0)
        return [number for number in self._pending if number == last and self.is_passed(number)]

    def ready(self) -> int | None:
        """The newest checkpoint that every subtask has answered with a cut; completing it subsumes the older ones."""
        for number in reversed(self._pending):
            answers = self._pending[number].answers
            complete = len(answers) == len(self._positions)
            if complete and all(a.outcome is Outcome.CUT for a in answers.values()):
                return number
        return None

    def complete(self, checkpoint: int) -> list[int]:
        """It is complete and durable. Returns the older ones that are thereby subsumed."""
        subsumed = [number for number in self._pending if number < checkpoint]
        for number in (*subsumed, checkpoint):
            del self._pending[number]
        self._late = {number: late for number, late in self._late.items() if number > checkpoint}
        self._failed = 0
        return subsumed

    def abort(self, checkpoint: int, *, counted: bool) -> None:
        """Give it up: what was prepared for it stays pending and goes with a later one. Too many in a row fail the
        attempt.
        """
        self._late[checkpoint] = self._pending.pop(checkpoint)
        if counted:
            self._failed += 1
            if self._failed > self._rules.tolerable:
                raise CheckpointsFailed(
                    f"{self._failed} recovery checkpoints in a row failed, {self._rules.tolerable} are tolerated",
                    hint="look at the reasons in cdr status, or raise CDR_TOLERABLE_FAILED_CHECKPOINTS",
                )
