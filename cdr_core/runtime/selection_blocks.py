"""The selection between filter and spill: one file per unit of filter, one block in it per new subtask.

A block holds the parts that the subtask owns and their runs, by channel and split; the index of all blocks is columns.
A selection is a cache of what filter decided: where a block is lost or damaged, the task that needs it selects the
splits of that unit again from the source.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import IO, Any

import google_crc32c
import msgspec
import numpy as np
import numpy.typing as npt

from cdr_core.channels.batch_scan import Scanned
from cdr_core.channels.batch_selection import BatchSelector, Selected, SplitRows
from cdr_core.channels.channel_batch import BatchSource, batch_source
from cdr_core.channels.channel_layout import LayoutReader
from cdr_core.channels.channel_scan import NO_SUM, Seen
from cdr_core.channels.channel_selection import Selector
from cdr_core.channels.filter_context import FilterContext
from cdr_core.channels.source_index import index_of
from cdr_core.errors import StorageError, Unreadable
from cdr_core.kernels import channel_batches
from cdr_core.log import with_fields
from cdr_core.planning.plan import Plan
from cdr_core.runtime.unit_runner import Job
from cdr_core.runtime.units import FilterUnit, StoredColumns
from cdr_core.storage import is_local, join, storage_for
from cdr_core.storage.atomic_write import making
from cdr_core.storage.column_codec import decode_columns, encode_columns, read_columns, read_file
from cdr_core.storage.local import map_file

log = logging.getLogger(__name__)

Longs = npt.NDArray[np.int64]
Columns = dict[str, npt.NDArray[Any]]
Referable = Callable[[int, int], bool]

BLOCK = ("subtask", "begin", "end", "crc32c", "carried_begin", "carried_end", "carried_crc32c")
"""Columns of the index of one file: whose block, where it lies, its checksum; the same for the bytes of its runs."""

STORED = "stored"
"""Beside them, what `spill` needs before it begins: bytes of the block that do not stay in the source."""

PIECE = 4 << 20
"""Bytes of runs that are carried at once."""


def load_splits(plan: Plan, source: FilterUnit) -> SplitRows:
    return SplitRows(plan, _scanned(source.file, source.sha256), source.first, source.end)


@lru_cache(maxsize=1)
def _scanned(file: str, sha256: str) -> Scanned:
    return Scanned.from_columns(read_columns(file, sha256), ())


def filter_context(job: Job, plan: Plan) -> FilterContext:
    """Filtering is on where some channel's records have several possible owners."""
    if (plan.channels.owner_count == 1).all():
        return FilterContext.disabled()
    return FilterContext(enabled=True, page_size=job.page_size, spill_dirs=(str(job.makes),))


def in_drain_order(plan: Plan, selected: Selected) -> Selected:
    """By new subtask, then channel and split."""
    subtask = plan.channels.subtask_of_lines(selected.line)
    channel = plan.channels.of_lines(selected.line)
    return selected.taken(np.lexsort((selected.split, channel, subtask)))


def referable(job: Job, plan: Plan) -> Referable:
    """Whether the drain may read so many bytes of a channel where they lie, as one segment."""
    reader = LayoutReader(plan)
    return lambda channel, size: not job.materialise and size <= job.segment_size and reader.lasts(channel)


def write_blocks(
    plan: Plan, selected: Selected, damaged: Longs, carries: Carrier | None, refers: Referable, sink: IO[bytes]
) -> Columns:
    """Write a block per new subtask. Return the index, with the bytes of each block that spill has to store.

    ``selected`` is in drain order, ``damaged`` are channels.
    """
    subtasks = plan.channels.subtask_of_lines(selected.line)
    unique, firsts = np.unique(subtasks, return_index=True)
    ends = np.append(firsts, len(subtasks))[1:]
    rows = []
    for subtask, first, end in zip(unique.tolist(), firsts.tolist(), ends.tolist(), strict=True):
        runs = slice(int(selected.run_first[first]), int(selected.run_first[end]))
        columns: Columns = {
            "line": selected.line[first:end],
            "split": selected.split[first:end],
            "run_first": selected.run_first[first : end + 1] - selected.run_first[first],
            "runs": selected.runs[:, runs],
            "damaged": np.isin(plan.channels.of_lines(selected.line[first:end]), damaged),
            **_with_sums(selected, first, end),
        }
        carried = (0, 0, 0)
        if carries is not None:
            columns["carried"] = carries.carries(selected.line[first:end])
            carried = carries.add(columns)
        stored = _stored_bytes(plan, columns, refers)
        block, begin = encode_columns({}, columns), sink.tell()
        sink.write(block)
        rows.append((subtask, begin, sink.tell(), google_crc32c.value(block), *carried, stored))
    table = np.array(rows, np.int64).reshape(-1, len(BLOCK) + 1)
    return dict(zip((*BLOCK, STORED), table.T, strict=True))


def _stored_bytes(plan: Plan, columns: Columns, refers: Referable) -> int:
    """Bytes of a block that do not stay in the source."""
    runs, first = columns["runs"], columns["run_first"]
    total = np.append(0, np.cumsum(runs[1] - runs[0]))
    sizes = total[first[1:]] - total[first[:-1]]
    stays = columns["summed"]
    if "carried" in columns:
        stays = stays[~columns["carried"][stays]]
    channels = plan.channels.of_lines(columns["line"][stays])
    pairs = zip(channels.tolist(), sizes[stays].tolist(), strict=True)
    return int(sizes.sum()) - sum(int(size) for number, size in pairs if refers(number, size))


def _with_sums(selected: Selected, first: int, end: int) -> Columns:
    """The parts of a block that may be drained from where they lie, their CRC-32C, and what `read` counted in them."""
    parts = first + np.flatnonzero(selected.crc32c[first:end] != NO_SUM)
    sums, kinds = selected.ledger.rows(parts)
    return {"summed": parts - first, "crc32c": selected.crc32c[parts], "sums": sums, "kinds": kinds}


class Carrier:
    """Copies the bytes of the runs of channels that the unit had to fetch, so that spill need not fetch them again."""

    def __init__(self, plan: Plan, source: BatchSource, fetched: Longs, uri: str, sink: IO[bytes]) -> None:
        self._plan, self._source, self._fetched, self.uri, self._sink = plan, source, fetched, uri, sink

    def carries(self, lines: Longs) -> npt.NDArray[np.bool_]:
        return np.isin(self._plan.channels.of_lines(lines), self._fetched)

    def add(self, columns: Columns) -> tuple[int, int, int]:
        """Append the bytes of the carried parts' runs; where they lie, and their checksum."""
        begin, crc32c = self._sink.tell(), 0
        for data in gathered(self._plan, self._source, columns, np.flatnonzero(columns["carried"])):
            self._sink.write(data.data)
            crc32c = google_crc32c.extend(crc32c, data)
        return begin, self._sink.tell(), crc32c


@contextmanager
def carrier(job: Job, plan: Plan, splits: SplitRows, name: str) -> Iterator[Carrier | None]:
    """None for a source on a disk: every task maps it, and nothing is fetched."""
    if not index_of(plan.metadata_sha256).is_remote:
        yield None
        return
    uri = join(job.directory, f"carried-{name}.bytes")
    # A channel is fetched as a whole, so what of it need not be looked at is carried as well.
    fetched = np.unique(splits.channel[splits.reads])
    with making(uri, job.makes) as temporary, temporary.open("xb") as sink:
        yield Carrier(plan, batch_source(plan, job.phase), fetched, uri, sink)


def gathered(plan: Plan, source: BatchSource, columns: Columns, parts: Longs) -> Iterator[npt.NDArray[np.uint8]]:
    """The bytes of the runs of some parts, in order, in pieces."""
    for part in parts.tolist():
        runs = columns["runs"][:, columns["run_first"][part] : columns["run_first"][part + 1]]
        own = slice(part, part + 1)
        batch = source.open(plan.channels.of_lines(columns["line"][own]), columns["damaged"][own])
        sizes = runs[1] - runs[0]
        target = np.empty(int(sizes.sum()), np.uint8)
        channel = np.zeros(runs.shape[1], np.int64)
        channel_batches.gather_runs(batch.first, batch.address, batch.logical, channel, runs[0], runs[1], target)
        yield target


@contextmanager
def batch_selector(job: Job, plan: Plan, seen: Seen | None = None) -> Iterator[tuple[BatchSelector, Selector]]:
    """What selects splits; its one read page is freed at the end."""
    with closing(Selector(plan, filter_context(job, plan))) as alone:
        yield BatchSelector(plan, batch_source(plan, job.phase), alone, seen), alone


class Blocks:
    """The blocks of one new subtask, by the index of all selections."""

    def __init__(self, job: Job, plan: Plan, subtask: int, index: StoredColumns) -> None:
        self._job, self._plan, self._subtask = job, plan, subtask
        self._files, columns = _index(index)
        mine = slice(*np.searchsorted(columns["subtask"], (subtask, subtask + 1)))
        self._rows = {name: column[mine] for name, column in columns.items()}
        self.made_again = 0
        """Blocks that were lost or damaged."""

    def __len__(self) -> int:
        return len(self._rows["file"])

    @property
    def budget(self) -> int:
        """Bytes that the task may hold."""
        return self._job.memory_budget

    def load(self, number: int) -> tuple[Columns, npt.NDArray[np.uint8] | None]:
        """A block, and the bytes of its carried parts, if it has any."""
        row = {name: int(column[number]) for name, column in self._rows.items()}
        file = self._files[row["file"]]
        try:
            if not file.selection:
                raise Unreadable("an earlier version left no blocks")
            data = _checked(file.selection, row["begin"], row["end"], row["crc32c"])
            carried = None
            if row["carried_end"] > row["carried_begin"]:
                place = file.carried, row["carried_begin"], row["carried_end"]
                carried = _mapped(*place, row["carried_crc32c"])
            return decode_columns(data)[1], carried
        except (StorageError, Unreadable) as error:
            log.info(
                "a lost selection is made again: %s", error.what, extra=with_fields(subtask=self._subtask, block=number)
            )
            self.made_again += 1
            return self._select_again(file.splits), None

    def _select_again(self, source: FilterUnit) -> Columns:
        splits = load_splits(self._plan, source)
        with batch_selector(self._job, self._plan) as (selector, _):
            selected = in_drain_order(self._plan, selector.select(splits))
        mine = np.flatnonzero(self._plan.channels.subtask_of_lines(selected.line) == self._subtask)
        found = selected.taken(mine)
        damaged = np.isin(self._plan.channels.of_lines(found.line), splits.channel[splits.damaged])
        columns = {"line": found.line, "split": found.split, "run_first": found.run_first, "runs": found.runs}
        return {**columns, "damaged": damaged, **_with_sums(found, 0, len(found.line))}


def _checked(uri: str, begin: int, end: int, crc32c: int) -> bytes:
    data = storage_for(uri).read(uri, begin, end - begin)
    if google_crc32c.value(data) != crc32c:
        raise StorageError(f"{uri} is damaged")
    return data


def _mapped(uri: str, begin: int, end: int, crc32c: int) -> npt.NDArray[np.uint8]:
    """As :func:`_checked`; a file of this host takes no memory, however much of it is carried."""
    if not is_local(uri):
        return np.frombuffer(_checked(uri, begin, end, crc32c), np.uint8)
    data = np.asarray(map_file(uri))[begin:end]
    if len(data) != end - begin or google_crc32c.value(data) != crc32c:
        raise StorageError(f"{uri} is damaged")
    return data


class SelectionFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """The files of one unit of filter. Without a ``selection`` an earlier version filtered, and left no blocks."""

    splits: FilterUnit
    selection: str = ""
    carried: str = ""


@lru_cache(maxsize=2)
def _index(stored: StoredColumns) -> tuple[list[SelectionFile], Columns]:
    detail, columns = read_file(stored.uri, stored.sha256)
    return msgspec.convert(detail["files"], list[SelectionFile]), columns


def write_index(units: Iterable[tuple[SelectionFile, Columns]]) -> bytes:
    """The index of all selections, by new subtask: ``units`` gives the files of each unit of filter, and its index."""
    files, parts = [], []
    for number, (file, columns) in enumerate(units):
        files.append(msgspec.to_builtins(file))
        parts.append(np.stack((*(columns[name] for name in BLOCK), np.full(len(columns["subtask"]), number))))
    table = np.concatenate([np.zeros((len(BLOCK) + 1, 0), np.int64), *parts], axis=1)
    table = table[:, np.lexsort((table[-1], table[0]))]
    return encode_columns({"files": files}, dict(zip((*BLOCK, "file"), table, strict=True)))
