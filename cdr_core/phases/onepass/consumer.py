"""The consumer of one pass: a thread beside the reader that makes rows of parcels, a segment's worth at a time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from cdr_core.faults import reach
from cdr_core.phases.onepass.parcels import Bytes, Longs, ParcelQueue, Slip
from cdr_core.spill.reader import SegmentBody
from cdr_core.spill.segments import Segment

if TYPE_CHECKING:
    from cdr_core.phases.draining.outputs import Output
    from cdr_core.rescale.plan import Plan


class ParcelConsumer:
    """Collects pages and writes rows when ``segment_size`` bytes of whole elements are there, or the channel ends."""

    def __init__(self, plan: Plan, output: Output[Any], segment_size: int) -> None:
        self._plan, self._output, self._segment_size = plan, output, segment_size
        self._number = -1
        self._chunks: list[Bytes] = []
        self._positions: list[Longs] = []
        self._held = 0

    def take(self, slip: Slip) -> None:
        """The next page. Its bytes are kept until their elements are whole; the page itself is free."""
        if slip.number != self._number:
            self._build()
            self._number = slip.number
        data = slip.page.data
        self._chunks.append(data)
        self._held += len(data)
        if slip.positions is not None:
            self._positions.append(slip.positions)
        slip.page.recycle()
        if slip.last and self._held >= self._segment_size:
            self._build()

    def finish(self) -> None:
        """Everything was handed over: the rest becomes rows and the file is closed."""
        self._build()
        self._output.close_file()

    def _build(self) -> None:
        if not self._held:
            return
        body, positions = np.concatenate(self._chunks), np.concatenate(self._positions)
        channel = self._plan.channels[self._number]
        gate = self._plan.exchanges[channel.exchange].gate
        segment = Segment(0, 0, gate, channel.new_up, len(body), len(positions), 0, self._number)
        self._chunks, self._positions, self._held = [], [], 0
        self._output.write(SegmentBody(segment, body, positions))


class ConsumerThread:
    """Runs the consumer until the queue ends. Leaving the block by an error ends it, and removes what it had open."""

    def __init__(self, plan: Plan, queue: ParcelQueue, output: Output[Any], segment_size: int) -> None:
        self._queue, self._output = queue, output
        self._consumer = ParcelConsumer(plan, output, segment_size)
        self._thread = threading.Thread(target=self._run, name="cdr-consumer", daemon=True)
        self._failure: BaseException | None = None

    def __enter__(self) -> ConsumerThread:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._queue.abandon()
        self._thread.join()

    def finish(self) -> None:
        """Wait until everything that was handed over is prepared output; raises what the consumer failed with."""
        self._queue.end()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            with self._output:
                while (slip := self._queue.take()) is not None:
                    reach("onepass.page")
                    self._consumer.take(slip)
                self._consumer.finish()
        except BaseException as error:  # whatever it is belongs to the task's own thread
            self._failure = error
            self._queue.fail(error)
