"""One subtask's drain on an executor: segments of its spill set to the output, and answers to checkpoint requests.

A task begins where the subtask's last answered cut left off: its own predecessor's in this attempt, else the last
complete recovery checkpoint's, else the start of the set.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cdr_core.commit.sinks.base import row_group_bytes
from cdr_core.drain.checkpoints import START
from cdr_core.drain.requests import Requests
from cdr_core.drain.state import DrainState
from cdr_core.faults import reach
from cdr_core.phases.draining.answering import Answering
from cdr_core.phases.draining.delivery import SegmentQueue
from cdr_core.phases.draining.mailbox import Mailbox, cut_body
from cdr_core.phases.draining.outputs import Output, output_for
from cdr_core.phases.meter import Meter
from cdr_core.storage import is_local
from cdr_core.storage.columns import pack_columns, unpack_columns

if TYPE_CHECKING:
    import numpy.typing as npt

    from cdr_core.commit.committable import PreparedFile
    from cdr_core.phases.unit import Job
    from cdr_core.rescale.plan import Plan
    from cdr_core.rescale.sides import Borders
    from cdr_core.spill.sets import SpillSet

LISTEN_SECONDS = 0.1
"""How often a task looks for requests: a checkpoint starts at most this much later."""
LISTEN_SECONDS_AFAR = 0.5
"""On S3, where every look is a request."""


@dataclass(frozen=True, slots=True)
class Base:
    """Where a task begins: a position, and the columns of its cut (``None`` = the start of the set).

    ``checkpoint`` is the last one that was cut in this attempt: nothing up to it is to be answered.
    """

    position: str = START
    columns: Mapping[str, npt.NDArray[Any]] | None = None
    checkpoint: int = 0

    @classmethod
    def of_cut(cls, position: str, body: Mapping[str, Any], checkpoint: int = 0) -> Base:
        return cls(position, unpack_columns(body["columns"]) if body["columns"] else None, checkpoint)


@dataclass(frozen=True, slots=True)
class SegmentCut:
    """Between two segments nothing is under way: what remains follows from what was delivered."""

    remaining: None = None


@dataclass(slots=True)
class CutRequests:
    """Requests that a task has heard, as :class:`Answering` asks for them."""

    requests: Requests = field(default_factory=lambda: Requests(time.monotonic))
    consumed: bool = False

    def request(self, checkpoint: int, aligned_timeout: float | None = None) -> None:
        self.requests.add(checkpoint, aligned_timeout)

    def due(self) -> tuple[int, ...]:
        return self.requests.due(consumed=self.consumed)

    def cut(self, checkpoint: int, _: Sequence[Any] = ()) -> SegmentCut:
        self.requests.settle(checkpoint)
        return SegmentCut()


class DrainTask:
    """Drains one subtask from its base to the end; :meth:`run` returns what the unit's result says."""

    def __init__(
        self,
        job: Job,
        plan: Plan,
        unit: str,
        name: str,
        spill_set: SpillSet,
        manifest: str,
        borders: Borders | None = None,
    ) -> None:
        self._job, self._plan, self._unit, self._name = job, plan, unit, name
        self._borders = borders
        self._set, self._manifest = spill_set, manifest
        self._next_look = 0.0

    def run(self, base: Base) -> tuple[dict[str, Any], DrainState]:
        mailbox = Mailbox(self._job.directory)
        self._answering = Answering(mailbox, self._unit, self._set.subtask, self._name, base.position, base.checkpoint)
        state = DrainState(self._plan, self._set, base.columns)
        before = state.tally.records
        output = output_for(
            self._job.target,
            state,
            self._set.subtask,
            f"{self._job.recovery}/e{self._job.epoch}-{self._name}",
            self._borders,
            row_group_bytes(self._job.memory_budget),
            shape=self._job.shape,
            directory=self._job.directory,
        )
        with output:
            self._drain(state, output)
            output.close_file()
            reach("drain.prepared")
            result = {
                "after": self._answering.position,
                "resumed_from": base.position,
                "records_here": state.tally.records - before,
                "files": [file.to_json() for file in output.take_files()],
                "manifest": self._manifest,
                "said": state.input_watermark.to_json(),
            }
            return result, state

    def _drain(self, state: DrainState, output: Output[Any]) -> None:
        requests, cutter = CutRequests(), _Cutter(output)
        meter = Meter(self._job, self._unit, self._set.ledger.bytes, state.tally.records, state.tally.bytes)
        numbers = state.still_to_come()
        budget = self._job.memory_budget
        with SegmentQueue(self._set, numbers, budget, positions=output.needs_positions) as queue:
            for number, segment in queue:
                self._listen(requests)
                self._answering.answer(requests, cutter, lambda _, files: self._body(state, files))
                output.write(segment, state.skip(number))
                meter.at(lambda: (state.tally.records, state.tally.bytes))
                reach("drain.page")

    def _listen(self, requests: CutRequests) -> None:
        now = time.monotonic()
        if not self._job.checkpoints or now < self._next_look:
            return
        self._next_look = now + (LISTEN_SECONDS if is_local(self._job.root) else LISTEN_SECONDS_AFAR)
        self._answering.listen(requests)

    def _body(self, state: DrainState, files: Sequence[PreparedFile]) -> dict[str, Any]:
        return cut_body(
            [file.to_json() for file in files],
            self._manifest,
            state.input_watermark.to_json(),
            pack_columns(state.to_columns()),
        )


@dataclass(frozen=True, slots=True)
class _Cutter:
    """The output, as a cut sees it."""

    output: Output[Any]

    def cut(self) -> tuple[()]:
        self.output.close_file()
        return ()

    def take_files(self) -> tuple[PreparedFile, ...]:
        return self.output.take_files()

    def keep_files(self, files: tuple[PreparedFile, ...]) -> None:
        self.output.keep_files(files)


def find_base(mailbox: Mailbox, unit: str, stored: Mapping[str, Any] | None) -> Base:
    """Where a task begins: the last cut answered in this attempt, else the one the driver found, else the start."""
    answer = mailbox.latest_cut(unit)
    if answer is not None:
        return Base.of_cut(answer.position, answer.body, answer.checkpoint)
    return Base() if stored is None else Base.of_cut(stored["position"], stored["body"])
