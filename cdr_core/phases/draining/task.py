"""One subtask's drain on an executor: pages from its spill set to the consumer, and answers to checkpoint requests.

A task begins where the subtask's last answered cut left off: its own predecessor's in this attempt, else the last
complete recovery checkpoint's, else the start of the set.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from cdr_core.audit.ledger import ChannelKey, Entry, Tally
from cdr_core.commit.sinks.base import row_group_bytes
from cdr_core.drain.checkpoints import START
from cdr_core.drain.pages import PagePool
from cdr_core.drain.remaining import Remaining, whole
from cdr_core.drain.subtask import RecoveringSubtask
from cdr_core.faults import reach
from cdr_core.phases.draining.answering import Answering
from cdr_core.phases.draining.consumer import Consumer
from cdr_core.phases.draining.mailbox import WHOLE, Mailbox, cut_body
from cdr_core.phases.draining.outputs import output_for
from cdr_core.phases.draining.said import NOTHING_SAID, Channel, channels
from cdr_core.phases.meter import Meter
from cdr_core.phases.spill import subtask_entry
from cdr_core.rescale.other_elements import Last
from cdr_core.spill.reader import SegmentReader
from cdr_core.storage import is_local

if TYPE_CHECKING:
    from cdr_core.commit.committable import PreparedFile
    from cdr_core.phases.unit import Job
    from cdr_core.rescale.plan import Plan
    from cdr_core.rescale.sides import Border
    from cdr_core.spill.segments import SpillSet

LISTEN_SECONDS = 0.1
"""How often a task looks for requests: a checkpoint starts at most this much later."""
LISTEN_SECONDS_AFAR = 0.5
"""On S3, where every look is a request."""
WAIT_SECONDS = 0.05
"""How long a task waits for a page before it looks for requests again."""


@dataclass(frozen=True, slots=True)
class Base:
    """Where a task begins: a position, what is left of the set (``None`` = all), and what was done before.

    ``checkpoint`` is the last one that was cut in this attempt: nothing up to it is to be answered.
    """

    position: str = START
    remaining: Remaining | None = None
    ledger: tuple[Entry, ...] = ()
    frames_done: Mapping[int, int] | None = None
    said: Mapping[Channel, Last] | None = None
    checkpoint: int = 0

    @classmethod
    def of_cut(cls, position: str, body: Mapping[str, Any], checkpoint: int = 0) -> Base:
        return cls(
            position,
            None if body["remaining"] == WHOLE else Remaining.from_json(body["remaining"]),
            tuple(Entry.from_json(entry) for entry in body["ledger"]),
            {int(segment): done for segment, done in body["frames_done"].items()},
            channels(body.get("said", NOTHING_SAID)),
            checkpoint,
        )


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
        borders: Mapping[int, Border] | None = None,
    ) -> None:
        self._job, self._plan, self._unit, self._name = job, plan, unit, name
        self._borders = borders
        self._set, self._manifest = spill_set, manifest
        self._next_look = 0.0

    def run(self, base: Base) -> dict[str, Any]:
        mailbox = Mailbox(self._job.directory)
        self._answering = Answering(mailbox, self._unit, self._set.subtask, self._name, base.position, base.checkpoint)
        numbers = virtual_channels(self._plan)
        tallies = {numbers[_source(entry.key)]: entry.tally for entry in base.ledger}
        file_name = f"{self._job.recovery}/e{self._job.epoch}-{self._name}"
        output = output_for(
            self._job.target,
            self._plan,
            self._set.subtask,
            file_name,
            tallies,
            base.said,
            self._borders,
            row_group_bytes(self._job.memory_budget),
            raw=self._job.raw,
        )
        pool = PagePool.of_budget(self._job.memory_budget, self._job.page_size, self._job.segment_size)
        remaining = base.remaining or whole(self._set)
        with (
            Consumer(self._set, output, base.frames_done or {}) as consumer,
            RecoveringSubtask(
                self._set,
                SegmentReader(self._set),
                channels_of(self._plan, self._set.subtask),
                pool,
                remaining,
                checkpoints=self._job.checkpoints,
            ) as subtask,
        ):
            subtask.start()
            self._drain(subtask, consumer, self._meter(base))
            consumer.cut()
            reach("drain.prepared")
            done = sum(tally.records for tally in consumer.tallies.values())
            return {
                "after": self._answering.position,
                "resumed_from": base.position,
                "records_here": done - sum(entry.tally.records for entry in base.ledger),
                "files": [file.to_json() for file in consumer.take_files()],
                "ledger": self._ledger(consumer.tallies),
                "manifest": self._manifest,
                "said": consumer.said,
            }

    def _meter(self, base: Base) -> Meter:
        total = sum(entry.tally.bytes for entry in self._set.ledger)
        return Meter(self._job, self._unit, total, *_done(entry.tally for entry in base.ledger))

    def _drain(self, subtask: RecoveringSubtask, consumer: Consumer, meter: Meter) -> None:
        while not subtask.done:
            self._listen(subtask)
            self._answering.answer(subtask, consumer, partial(self._body, consumer))
            page = subtask.poll(WAIT_SECONDS)
            if page is not None:
                consumer.take(page)
                meter.at(lambda: _done(consumer.tallies.values()))
                page.recycle()
                reach("drain.page")

    def _listen(self, subtask: RecoveringSubtask) -> None:
        now = time.monotonic()
        if not self._job.checkpoints or now < self._next_look:
            return
        self._next_look = now + (LISTEN_SECONDS if is_local(self._job.root) else LISTEN_SECONDS_AFAR)
        self._answering.listen(subtask)

    def _body(self, consumer: Consumer, remaining: Remaining, files: Sequence[PreparedFile]) -> dict[str, Any]:
        return cut_body(
            [file.to_json() for file in files],
            remaining.to_json(),
            self._ledger(consumer.tallies),
            {str(segment): done for segment, done in consumer.frames_done().items()},
            self._manifest,
            consumer.said,
        )

    def _ledger(self, tallies: Mapping[int, Tally]) -> list[dict[str, Any]]:
        return [
            subtask_entry(self._plan, self._set.subtask, number, tally).to_json() for number, tally in tallies.items()
        ]


def find_base(mailbox: Mailbox, unit: str, stored: Mapping[str, Any] | None) -> Base:
    """Where a task begins: the last cut answered in this attempt, else the one the driver found, else the start."""
    answer = mailbox.latest_cut(unit)
    if answer is not None:
        return Base.of_cut(answer.position, answer.body, answer.checkpoint)
    return Base() if stored is None else Base.of_cut(stored["position"], stored["body"])


def channels_of(plan: Plan, subtask: int) -> list[tuple[int, int]]:
    """Every (gate, channel) of a new subtask, those without recovered data included: each gets its end marker."""
    operator = plan.subtasks[subtask].operator
    return sorted(
        {(e.gate, channel) for e in plan.exchanges if e.downstream == operator for channel in range(e.new_up)}
    )


def virtual_channels(plan: Plan) -> dict[tuple[str, int, int], int]:
    """Numbers of the virtual channels by (exchange, up, down)."""
    return {
        (plan.exchanges[channel.exchange].name, channel.up, channel.down): number
        for number, channel in enumerate(plan.channels)
    }


def _done(tallies: Iterable[Tally]) -> tuple[int, int]:
    """Records and bytes."""
    records = size = 0
    for tally in tallies:
        records, size = records + tally.records, size + tally.bytes
    return records, size


def _source(key: ChannelKey) -> tuple[str, int, int]:
    return key.exchange, key.up, key.down
