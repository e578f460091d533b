"""Checkpoints made of values: operators, and bytes in flight where a test wants them; and records to put there."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cdr_core.channels.channel_scan import scan_channel
from cdr_core.channels.channel_selection import Selector
from cdr_core.flink.checkpoint import Checkpoint, load_checkpoint
from cdr_core.flink.metadata import (
    CheckpointMetadata,
    FinishedSubtask,
    InlineBytes,
    Offsets,
    OperatorState,
    SingleChannelHandle,
    SubtaskState,
    write_metadata,
)
from cdr_core.flink.operator_id import operator_id_of_uid
from cdr_core.flink.virtual_channel import Window
from cdr_core.kernels import frames
from cdr_core.planning.job_spec import parse_spec
from cdr_core.planning.parallelism import parse_parallelism
from cdr_core.planning.plan import Plan, make_plan
from tests.support.naive_selection import select_runs

RECORD = "TUPLE<LONG, INT>"
NO_PROPERTIES = bytes.fromhex("aced000570")


class At(NamedTuple):
    """A channel of one side: (gate, channel) of a subtask, or (partition, subpartition)."""

    subtask: int
    a: int
    b: int


@dataclass(frozen=True)
class Op:
    """An operator by its uid; ``finished`` all of it, ``ended`` some of its subtasks."""

    uid: str
    parallelism: int
    max_parallelism: int = 128
    inputs: Mapping[At, bytes] = field(default_factory=dict)
    outputs: Mapping[At, bytes] = field(default_factory=dict)
    finished: bool = False
    ended: Sequence[int] = ()

    def state(self) -> OperatorState:
        running = [index for index in range(self.parallelism) if index not in self.ended and not self.finished]
        subtasks = [
            SubtaskState(
                index, input_channels=_handles(self.inputs, index), output_channels=_handles(self.outputs, index)
            )
            for index in running
        ]
        return OperatorState(
            operator_id_of_uid(self.uid),
            self.parallelism,
            self.max_parallelism,
            uid=self.uid,
            name=self.uid,
            subtasks=(*subtasks, *(FinishedSubtask(index) for index in self.ended)),
            finished_mark=-1 if self.finished else None,
        )


def _handles(channels: Mapping[At, bytes], subtask: int) -> tuple[SingleChannelHandle, ...]:
    return tuple(
        SingleChannelHandle(
            *at, Offsets.of([4]), 8 + len(data), InlineBytes("", struct.pack(">ii", 0, len(data)) + data)
        )
        for at, data in channels.items()
        if at.subtask == subtask
    )


def checkpoint_of(*operators: Op, directory: Path | None = None) -> Checkpoint:
    """The checkpoint, through its own bytes; written to the directory where one is given, so that it can be read."""
    data = write_metadata(
        CheckpointMetadata(6, 1, tuple(operator.state() for operator in operators), properties=NO_PROPERTIES)
    )
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "_metadata").write_bytes(data)
    return load_checkpoint(str(directory or "memory"), data)


def exchange(
    name: str = "main",
    up: str = "gen",
    down: str = "slow",
    how: str = "hash",
    *,
    partition: int = 0,
    gate: int = 0,
    record: str = RECORD,
    more: str = "",
) -> str:
    """One exchange of a spec; a hash exchange of records that decode is keyed by the first field."""
    key = "key: [f0]" if how == "hash" and record != "OPAQUE" else ""
    lines = [f"partitioner: {how}", f"record: '{record}'", key, more]
    return f"""
  - name: {name}
    upstream: {{operator: {up}, partition: {partition}}}
    downstream: {{operator: {down}, gate: {gate}}}""" + "".join(f"\n    {line}" for line in lines if line)


def spec_of(*exchanges: str) -> str:
    return "job: made\nexchanges:" + "".join(exchanges) + "\n"


def plan_of(checkpoint: Checkpoint, spec: str, parallelism: str) -> Plan:
    return make_plan(checkpoint, parse_spec(spec), parse_parallelism(parallelism), 1 << 62)


def frame(key: int, number: int) -> bytes:
    """A record (key, number) without a timestamp, its length in front."""
    return struct.pack(">ibqi", 13, 1, key, number)


def watermark(time: int) -> bytes:
    return struct.pack(">ibq", 9, 2, time)


def window_of(data: bytes) -> Window:
    """All elements of a channel's bytes, as the shipped scanner finds them."""
    array = np.frombuffer(data, np.uint8)
    starts, ends = np.empty(len(data), np.int64), np.empty(len(data), np.int64)
    tags = np.empty(len(data), np.int8)
    count, used, outcome = frames.scan_frames(array, len(array), starts, ends, tags, len(array))
    assert (used, outcome) == (len(data), frames.OK)
    return Window(array, 0, 0, starts[:count], ends[:count], tags[:count])


def runs_of(window: Window, lanes: npt.NDArray[np.int64], width: int) -> list[tuple[int, ...]]:
    """(lane, start, end, position, count) of the selection, where no lane carries anything but records."""
    columns = [np.empty(len(lanes), np.int64) for _ in range(5)]
    carried = np.zeros((width, frames.TAGS), np.uint8)
    counts = np.zeros((width + 2, frames.TAGS), np.int64)
    count = select_runs(
        window.starts, window.ends, window.tags, lanes, carried, window.base, window.position, counts, *columns
    )
    return list(zip(*(column[:count].tolist() for column in columns), strict=True))


def values_of(window: Window) -> list[tuple[Any, ...]]:
    """(position, key, number) of every record, read byte by byte."""
    found = []
    for position, (start, tag) in enumerate(zip(window.starts.tolist(), window.tags.tolist(), strict=True)):
        if tag == 1:
            found.append((position, *struct.unpack(">qi", window.data[start + 1 : start + 13].tobytes())))
    return found


def select(selector: Selector, plan: Plan, number: int) -> dict[int, list[int]]:
    """By new subtask the positions that the shipped filter gives it, of a channel that the shipped scan has split.

    Elements that are not records are among them where the rule says so.
    """
    found: dict[int, list[int]] = {plan.subtasks[subtask].index: [] for subtask in plan.channels[number].subtasks}
    for place, split in enumerate(scan_channel(plan, number)["splits"]):
        selection = selector.select({"channel": number, "number": place, "damaged": False, **split})
        for lane, subtask in enumerate(plan.channels[number].subtasks):
            _, _, positions, counts = selection.of_lane(lane)
            taken = found[plan.subtasks[subtask].index]
            for first, count in zip(positions.tolist(), counts.tolist(), strict=True):
                assert not taken or taken[-1] < first, "order is kept"
                taken += range(first, first + count)
            others = sum(selection.others[lane].values())
            assert selection.tallies[lane].records + others == sum(counts.tolist())
    return found
