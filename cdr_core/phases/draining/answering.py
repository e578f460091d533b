"""A task's side of recovery checkpoints: it hears requests, cuts, and answers from the position where it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from cdr_core.drain.checkpoints import Answer, Outcome
from cdr_core.errors import Declined, JobFailed, NotReady
from cdr_core.faults import reach

if TYPE_CHECKING:
    from cdr_core.commit.committable import PreparedFile
    from cdr_core.drain.remaining import Slice
    from cdr_core.phases.draining.mailbox import Mailbox

Body = Callable[[Any, Sequence["PreparedFile"]], dict[str, Any]]
"""What an answer says of a cut: of what remains, and of the files that go with it."""


class Requested(Protocol):
    """What is asked of a task, as a cut sees it."""

    def request(self, checkpoint: int, aligned_timeout: float | None = None) -> None:
        """Ask for a checkpoint: at once, or aligned for at most so many seconds."""

    def due(self) -> tuple[int, ...]:
        """Requests to be cut now, ascending."""

    def cut(self, checkpoint: int, half_records: tuple[Slice, ...] = ()) -> Remains:
        """Take a checkpoint."""


class Remains(Protocol):
    """A cut."""

    @property
    def remaining(self) -> Any: ...


class Prepares(Protocol):
    """The consumer, as a cut sees it."""

    def cut(self) -> tuple[Slice, ...]:
        """Everything whole is prepared; what is left are the heads of records not yet whole."""

    def take_files(self) -> tuple[PreparedFile, ...]:
        """The files prepared since they were last asked for."""

    def keep_files(self, files: tuple[PreparedFile, ...]) -> None:
        """They were not handed over: the next one who asks gets them."""


class Answering:
    """Of one task, named ``name``. It answers the newest request that is due; that settles the older ones."""

    def __init__(self, mailbox: Mailbox, unit: str, subtask: int, name: str, position: str, heard: int) -> None:
        self._mailbox, self._unit, self._subtask, self._name = mailbox, unit, subtask, name
        self._heard = heard
        self.position = position

    def listen(self, subtask: Requested) -> None:
        """Hear what was asked since the last look."""
        for request in self._mailbox.requests_after(self._heard):
            self._heard = request.checkpoint
            subtask.request(request.checkpoint, request.aligned_timeout)

    def answer(self, subtask: Requested, consumer: Prepares, body: Body) -> None:
        """Cut and say so, if it is time. The file of the answer is created last: what it names is durable by then."""
        due = subtask.due()
        if not due:
            return
        checkpoint, heads = max(due), consumer.cut()
        reach("drain.cut-prepared")
        files = consumer.take_files()
        answer = self._cut(checkpoint, subtask, heads, lambda remaining: body(remaining, files))
        if self._mailbox.answer(self._unit, answer):
            reach("drain.answered")
            if answer.outcome is Outcome.CUT:
                self.position = answer.position
            else:
                consumer.keep_files(files)
            return
        consumer.keep_files(files)
        given = self._mailbox.given(checkpoint, self._unit)
        if given.position != self.position:
            raise JobFailed(f"another attempt at subtask {self._subtask} answered for it")

    def _cut(
        self,
        checkpoint: int,
        subtask: Requested,
        heads: tuple[Slice, ...],
        body: Callable[[Any], dict[str, Any]],
    ) -> Answer:
        try:
            cut = subtask.cut(checkpoint, heads)
        except (NotReady, Declined) as refusal:
            outcome = Outcome.NOT_READY if isinstance(refusal, NotReady) else Outcome.DECLINED
            return Answer(checkpoint, self._subtask, outcome, self.position, self.position, reason=str(refusal))
        position = f"{checkpoint}-{self._name}"
        return Answer(checkpoint, self._subtask, Outcome.CUT, self.position, position, body(cut.remaining))
