"""The selection as spill reads it: the runs of a part, verified, and the bytes that they are of.

A selection is a cache of what filter decided: where a part of it is lost or damaged, the task selects that part's split
again from the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import google_crc32c
import pyarrow as pa

from cdr_core.errors import StorageError, Unreadable
from cdr_core.flink.virtual_channel import ChannelBytes
from cdr_core.phases.filter import RUNS, filter_context
from cdr_core.phases.unit import Job
from cdr_core.rescale.carried import Longs, as_channel
from cdr_core.rescale.plan import Plan
from cdr_core.rescale.salvage import open_again
from cdr_core.rescale.selection import Selector
from cdr_core.rescale.source import place
from cdr_core.settings import KIB
from cdr_core.storage import is_local, storage_for
from cdr_core.storage.local import local_path

LARGEST_READ = 256 * KIB
"""Bytes of a selection that are read instead of mapped; a mapping costs as much as reading this many."""


class Selections:
    """The runs of one new subtask's parts. Runs are valid until the next part is asked for."""

    def __init__(self, job: Job, plan: Plan, subtask: int) -> None:
        self._job, self._plan, self._subtask = job, plan, subtask
        self._mapped = cache(_map)  # parts of one file come one after another
        self._selector: Selector | None = None
        self.made_again = 0
        """Parts whose selection was lost or damaged."""

    def close(self) -> None:
        if self._selector is not None:
            self._selector.close()

    def of(self, part: Mapping[str, Any]) -> tuple[ChannelBytes, list[Longs]]:
        """Return the bytes and, as places in them, the runs: start, end, first position, elements."""
        number, damaged = part["channel"], part["split"]["damaged"]
        try:
            runs, carried = self._stored(part)
        except (StorageError, Unreadable, pa.ArrowException, EOFError, OSError):
            self.made_again += 1
            runs, carried = self._selected(part["split"]), None
        if carried is None:
            return open_again(self._plan, number, damaged), runs
        source, starts, ends = as_channel(carried, runs[0], runs[1], place(self._plan, number))
        return source, [starts, ends, *runs[2:]]

    def _stored(self, part: Mapping[str, Any]) -> tuple[list[Longs], bytes | None]:
        """What filter left: the runs and, if it had to fetch them, their bytes."""
        batch = pa.ipc.read_record_batch(self._bytes(part), RUNS)
        runs = [batch.column(name).to_numpy() for name in ("start", "end", "position", "count")]
        if "carried" not in part:
            return runs, None
        uri, begin, end, *crc32c = part["carried"]
        carried = storage_for(uri).read(uri, begin, end - begin)
        _require_sum(uri, carried, *crc32c)
        return runs, carried

    def _bytes(self, part: Mapping[str, Any]) -> pa.Buffer:
        """One batch of a selection file: read by its range, but mapped where it is large and lies on a disk."""
        uri, (begin, end) = part["file"], part["range"]
        if is_local(uri) and end - begin > LARGEST_READ:
            data = self._mapped(str(local_path(uri))).slice(begin, end - begin)
        else:
            data = pa.py_buffer(storage_for(uri).read(uri, begin, end - begin))
        _require_sum(uri, data, part["crc32c"])
        return data

    def _selected(self, split: Mapping[str, Any]) -> list[Longs]:
        """Do what filter did for the split; return this subtask's lane of it."""
        if self._selector is None:
            self._selector = Selector(self._plan, filter_context(self._job, self._plan))
        lane = self._plan.channels[split["channel"]].subtasks.index(self._subtask)
        return list(self._selector.select(split).of_lane(lane))


def _require_sum(uri: str, data: bytes | pa.Buffer, crc32c: int | None = None) -> None:
    """Compare bytes with the checksum of the unit that wrote them; ``None`` = a version before recorded none."""
    if crc32c not in (None, google_crc32c.value(data)):
        raise StorageError(f"{uri} is damaged")


def _map(path: str) -> pa.Buffer:
    with pa.memory_map(path) as file:
        return file.read_buffer()
