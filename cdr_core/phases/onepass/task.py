"""One subtask in one pass, on an executor: the reader in the task's own thread, the consumer in another."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from cdr_core.commit.sinks.base import row_group_bytes
from cdr_core.drain.checkpoints import START
from cdr_core.faults import reach
from cdr_core.flink.read_page import ReadPage
from cdr_core.phases.draining import said as saying
from cdr_core.phases.draining.outputs import Output, output_for
from cdr_core.phases.meter import Meter
from cdr_core.phases.onepass.consumer import ConsumerThread
from cdr_core.phases.onepass.delivery import Delivery
from cdr_core.phases.onepass.disk import DiskQueue
from cdr_core.phases.onepass.mode import COUNTERS
from cdr_core.phases.onepass.parcels import ParcelQueue
from cdr_core.phases.onepass.reading import FeedReader
from cdr_core.phases.spill import subtask_entry
from cdr_core.phases.unit import Outcome
from cdr_core.spill.placement import Place
from cdr_core.spill.router import Route
from cdr_core.spill.tiers import Tier
from cdr_core.spill.writer import SpillWriter
from cdr_core.storage.local import local_path

if TYPE_CHECKING:
    from cdr_core.phases.unit import Job
    from cdr_core.rescale.plan import Plan

PATHS = {Route.MEMORY: "memory_bytes", Route.DISK: "disk_bytes", Route.REPLAY: "replay_bytes"}
"""The names of the three paths in counters."""


def execute(job: Job, plan: Plan, unit: Mapping[str, Any], name: str) -> Outcome:
    """Read, route and deliver; the result holds what each of the phases read, filter, spill and drain would leave."""
    return _Task(job, plan, unit, name).run()


class _Task:
    def __init__(self, job: Job, plan: Plan, unit: Mapping[str, Any], name: str) -> None:
        self._job, self._plan, self._unit, self._name = job, plan, unit, name
        self._subtask: int = unit["subtask"]

    def run(self) -> Outcome:
        job = self._job
        queue = ParcelQueue(max(job.memory_budget // job.page_size, 1), job.page_size)
        file_name = f"{job.recovery}/e{job.epoch}-{self._name}-0"
        rows = row_group_bytes(job.memory_budget)
        output = output_for(job.target, self._plan, self._subtask, file_name, {}, None, None, rows, raw=job.raw)
        with ExitStack() as stack:
            disk = self._disk(stack) if self._unit["spills"] else None
            page = stack.enter_context(ReadPage(job.page_size))
            consumer = stack.enter_context(ConsumerThread(self._plan, queue, output, job.segment_size))
            reader = FeedReader(job, self._plan, self._subtask, self._name, page)
            delivery = Delivery(queue, disk, page)
            self._read(reader, delivery)
            reach("onepass.read-done")
            delivery.drain()
            consumer.finish()
            reach("onepass.prepared")
            if disk is not None:
                disk.discard()
            return self._outcome(reader, output, self._counters(delivery, queue, disk, page))

    def _read(self, reader: FeedReader, delivery: Delivery) -> None:
        total = sum(channel.bytes for channel in self._plan.channels if self._subtask in channel.subtasks)
        meter, counted = Meter(self._job, f"{self._subtask:05d}", total), 0
        for parcel in reader.parcels():
            delivery.put(parcel)
            meter.add(len(parcel.positions), reader.bytes_read - counted)
            counted = reader.bytes_read

    def _disk(self, stack: ExitStack) -> DiskQueue:
        job = self._job
        name = f"set-{self._name}"

        def open_writer() -> SpillWriter:
            tiers = [Tier(**tier) for tier in self._unit["tiers"]]
            places = [Place.of_attempt(tier, job.recovery, job.epoch, name) for tier in tiers]
            directory = local_path(job.directory) / name
            writer = SpillWriter(directory, self._subtask, job.segment_size, job.spill_file_size, places)
            return stack.enter_context(writer)

        return DiskQueue(self._plan, self._subtask, open_writer)

    def _counters(
        self, delivery: Delivery, queue: ParcelQueue, disk: DiskQueue | None, page: ReadPage
    ) -> dict[str, Any]:
        return {
            **{PATHS[way]: size for way, size in delivery.bytes.items()},
            "pages": queue.pages,
            "most_pages": queue.most_in_use,
            "spill_files": 0 if disk is None else disk.files,
            "read_page_bytes": page.counts.bytes,
            "read_page": page.counts.to_json(),
        }

    def _outcome(self, reader: FeedReader, output: Output[Any], counters: Mapping[str, Any]) -> Outcome:
        tallies = output.tallies
        drained = [
            subtask_entry(self._plan, self._subtask, number, tally).to_json() for number, tally in tallies.items()
        ]
        records = sum(tally.records for tally in tallies.values())
        detail = {
            "subtask": self._subtask,
            "channels": reader.source,
            "filter": {"parts": reader.parts, "accounts": reader.accounts, "page": counters["read_page"]},
            "spill": {
                "subtask": self._subtask,
                "ledger": [line.to_json() for line in reader.routed.values()],
                "files": [],
            },
            "drain": {
                "subtask": self._subtask,
                "after": START,
                "resumed_from": START,
                "records_here": records,
                "files": [file.to_json() for file in output.take_files()],
                "ledger": drained,
                "manifest": "",
                "said": saying.to_json(self._with_data(reader), output.said),
            },
            COUNTERS: counters,
        }
        return Outcome(records, reader.bytes_read, detail)

    def _with_data(self, reader: FeedReader) -> list[tuple[int, int]]:
        """The new channels that anything went to."""
        lines = {n: line for n, line in reader.routed.items() if line.tally.records or line.others}
        channels = [self._plan.channels[number] for number in lines]
        return sorted({(self._plan.exchanges[each.exchange].gate, each.new_up) for each in channels})
