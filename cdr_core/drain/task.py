"""One subtask's drain on an executor: segments of its spill set to the output, and a snapshot behind every file.

A task begins where the chain of its subtask's snapshots ends; in a new attempt, at the last complete recovery
checkpoint; else at the start of the set.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from cdr_core.audit.ledger import Ledger, join_ledgers, require_equal
from cdr_core.commit.sinks import sink_for
from cdr_core.commit.sinks.base import row_group_bytes
from cdr_core.drain.drain_state import DrainState
from cdr_core.drain.routed_delivery import PlannedSource, SegmentQueue
from cdr_core.drain.snapshots import Cut, Snapshot, Snapshots
from cdr_core.drain.subtask_output import Output, output_for
from cdr_core.errors import CdrError, Unbalanced
from cdr_core.faults import reach
from cdr_core.log import with_fields
from cdr_core.planning.drain_order import stages
from cdr_core.runtime.phase_ledgers import line_key
from cdr_core.runtime.read_back import read_back
from cdr_core.runtime.unit_progress import Meter
from cdr_core.spill.router import ROUTING, Routing
from cdr_core.spill.scratch_ring import Scratch
from cdr_core.storage import is_local
from cdr_core.targets import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdr_core.channels.state_border import Borders
    from cdr_core.commit.committable import PreparedFile
    from cdr_core.planning.plan import Plan
    from cdr_core.runtime.unit_runner import Job
    from cdr_core.spill.spill_set import SpillSet

LISTEN_SECONDS = 0.1
"""How often a task looks for a request to close its file."""
LISTEN_SECONDS_AFAR = 0.5
"""On S3, where every look is a request."""


log = logging.getLogger(__name__)


class DrainTask:
    """Drains one subtask from the snapshot by which the task took it over to the end."""

    def __init__(
        self,
        job: Job,
        plan: Plan,
        unit: str,
        name: str,
        spill_set: SpillSet,
        manifest: str,
        borders: Borders | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job, self._plan, self._unit, self._name = job, plan, unit, name
        self._borders = borders
        self._set, self._manifest = spill_set, manifest
        self._clock = clock
        self._snapshots = Snapshots(job.directory)
        self._next_look = 0.0
        self._asked = 0
        self._file_since: float | None = None

    def run(self, taken_over: Snapshot) -> Snapshot:
        """The final snapshot; in a round before the last, the newest."""
        self._last = replace(taken_over, cut=replace(taken_over.cut, manifest=self._manifest))
        self._asked = self._request()
        self._routing = Routing.from_column((taken_over.cut.columns or {}).get(ROUTING))
        state = DrainState(self._plan, self._set, taken_over.cut.columns)
        output = output_for(
            Target.parse(self._job.target),
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
            reach("drain.prepared")
            log.debug("subtask drained", extra=with_fields(subtask=self._set.subtask, **asdict(self._routing)))
            return self._snapshot(state, output, final=self._job.stage is None)

    def _drain(self, state: DrainState, output: Output[Any]) -> None:
        meter = Meter(self._job, self._unit, self._set.ledger.bytes, state.tally.records, state.tally.bytes)
        numbers = [number for number in state.still_to_come() if self._is_in_round(number)]
        budget = self._job.memory_budget
        self._begin_file(state)
        source, scratch = PlannedSource(self._plan), Scratch(self._job.scratch_place, self._job.drain_scratch)
        with SegmentQueue(
            self._set, numbers, source, budget, scratch, self._routing, positions=output.needs_positions
        ) as queue:
            for number, segment in queue:
                if self._is_due(state):
                    self._snapshot(state, output)
                output.write(segment, state.skip(number))
                if self._file_since is None:
                    self._file_since = self._clock()
                meter.at(lambda: (state.tally.records, state.tally.bytes))
                reach("drain.page")

    def _is_in_round(self, segment: int) -> bool:
        """A segment holds elements of one exchange."""
        if self._job.stage is None:
            return True
        channels = self._plan.channels
        line = self._set.columns["line"][self._set.pieces(segment)][:1]
        exchange = int(channels.exchange[channels.of_lines(line)][0])
        return int(stages(self._plan, self._job.drain_order)[exchange]) <= self._job.stage

    def _begin_file(self, state: DrainState) -> None:
        """The age of a file counts from its first segment: a file with nothing in it is never closed for its age."""
        self._file_since, self._begun_bytes = None, state.tally.bytes

    def _is_due(self, state: DrainState) -> bool:
        """Whether the file ends here: it is large enough, or old enough, or a recovery checkpoint was requested."""
        if state.tally.bytes - self._begun_bytes >= self._job.output_file_size:
            return True
        if not self._job.checkpoints:
            return False
        now = self._clock()
        if self._file_since is not None and 0 < self._job.checkpoint_interval <= now - self._file_since:
            return True
        if now < self._next_look:
            return False
        self._next_look = now + (LISTEN_SECONDS if is_local(self._job.root) else LISTEN_SECONDS_AFAR)
        before, self._asked = self._asked, self._request()
        return self._asked > before

    def _request(self) -> int:
        """The newest request. One that cannot be read is not heard: the driver does not need the task's answer."""
        with suppress(CdrError, OSError, ValueError):
            return self._snapshots.asked()
        return self._asked

    def _read_back(self, files: Sequence[PreparedFile], before: Ledger, now: Ledger) -> None:
        """Raise unless the files hold what was delivered since ``before``, in order."""
        sink, size, shape = (
            sink_for(Target.parse(self._job.target)),
            row_group_bytes(self._job.memory_budget),
            self._job.shape,
        )
        found = join_ledgers([before, *(read_back(self._plan, sink, file, size, shape) for file in files)])
        if shape.identifies_bytes:
            require_equal("drain", now, found, line_key(self._plan))
        elif now.records != found.records:
            raise Unbalanced(f"{now.records} records were drained, {found.records} are in the files")

    def _snapshot(self, state: DrainState, output: Output[Any], *, final: bool = False) -> Snapshot:
        """Close the file and say so. The snapshot is created last: what it names is durable by then."""
        output.close_file()
        reach("drain.cut-prepared")
        last, number, files = self._last, self._last.number + 1, output.take_files()
        if self._job.read_back and files:
            self._read_back(files, last.cut.ledger, state.tally.ledger)
        cut = Cut(
            f"{number}-{self._name}",
            self._manifest,
            (*last.cut.files, *files),
            state.input_watermark,
            {**state.to_columns(), ROUTING: self._routing.to_column()},
            final,
        )
        self._last = Snapshot(last.subtask, number, self._name, last.cut.position, cut)
        self._snapshots.create(self._unit, self._last)
        reach("drain.snapshot")
        self._begin_file(state)
        return self._last
