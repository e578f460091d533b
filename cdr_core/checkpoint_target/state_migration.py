"""Other state of a re-written checkpoint: redistributed where parallelism changes, and its files copied.

Unit: some new subtasks of one operator. Its result is a small ``_metadata`` of that operator in the workspace; files
lie in the target's directory. A file behind a relative handle is copied under its own name, which Flink made unique: an
existing copy of an earlier attempt is the same file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from cdr_core.channels.state_source import StateReader
from cdr_core.checkpoint_target.file_copy import copy_file
from cdr_core.checkpoint_target.file_presence import look_for, missing_of
from cdr_core.checkpoint_target.units import MovedState, StateUnit
from cdr_core.commit.sinks.checkpoint import CheckpointSink, file_name
from cdr_core.commit.sinks.prepared_files import Summed
from cdr_core.faults import reach
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.flink.metadata import (
    CheckpointMetadata,
    InlineBytes,
    OperatorState,
    RelativeFile,
    StreamHandle,
    SubtaskState,
    read_metadata,
    write_metadata,
)
from cdr_core.flink.state import files_behind, redistribute

SUBTASKS: Final = 8
"""New subtasks of one unit, at most."""
INLINE: Final = 20 * 1024
"""Bytes. Merged state up to so much goes into ``_metadata`` itself, as Flink does by default."""


def state_units(source: CheckpointMetadata, parallelism: Mapping[str, int]) -> dict[str, StateUnit]:
    """Return units for every operator that has any state besides in-flight data."""
    units: dict[str, StateUnit] = {}
    for number, operator in enumerate(source.operators):
        if not has_state(operator):
            continue
        subtasks = range(parallelism[operator.operator_id])
        for first in range(0, len(subtasks), SUBTASKS):
            units[f"state-{number:04d}-{first:05d}"] = StateUnit(
                operator.operator_id, len(subtasks), tuple(subtasks[first : first + SUBTASKS])
            )
    return units


def has_state(operator: OperatorState) -> bool:
    """Return whether any subtask has state besides channel state."""
    nothing = (None, None, None, None)
    return any(
        isinstance(each, SubtaskState)
        and (each.managed_operator, each.raw_operator, each.managed_keyed, each.raw_keyed) != nothing
        for each in operator.subtasks
    )


@dataclass(slots=True)
class Moved:
    """Collects the fields of a :class:`MovedState`."""

    read: int = 0
    written: int = 0
    made: list[dict[str, Any]] = field(default_factory=list)
    copied: list[dict[str, Any]] = field(default_factory=list)
    depends_on: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def frozen(self) -> MovedState:
        return MovedState(
            self.read,
            self.written,
            tuple(self.made),
            tuple(self.copied),
            tuple(self.depends_on),
            tuple(self.missing),
            tuple(self.unknown),
        )


def move_state(
    checkpoint: Checkpoint, unit: StateUnit, sink: CheckpointSink, name: str, scratch: Path
) -> tuple[bytes, MovedState]:
    """Return the unit's operator as a ``_metadata`` of its own, and the facts of the move. ``name`` is unique to the
    attempt, and ``scratch`` has room for a file that is copied.
    """
    moved = Moved()
    operator, read = checkpoint.operator(unit.operator), StateReader(checkpoint)
    states = redistribute(
        operator,
        unit.parallelism,
        read,
        _Writer(sink, name, moved),
        version=checkpoint.metadata.version,
        checkpoint_id=checkpoint.metadata.checkpoint_id,
        only=unit.subtasks,
    )
    moved.read = read.bytes
    new = replace(operator, parallelism=unit.parallelism, subtasks=states)
    made = {file["path"] for file in moved.made}
    for file in files_behind(new):
        if isinstance(file, RelativeFile) and file.path not in made:
            moved.copied.append(copy_file(checkpoint, file, sink, scratch))
            reach("state.copied")
    outside = [file for file in files_behind(new) if not isinstance(file, RelativeFile)]
    found = {file.path: each for file, each in look_for(checkpoint, outside).items()}
    moved.depends_on = sorted(found)
    moved.missing, moved.unknown = missing_of(found).values()
    return write_metadata(replace(checkpoint.metadata, operators=(new,), master_states=())), moved.frozen()


def subtasks_in(data: bytes) -> tuple[str, list[SubtaskState]]:
    """Return the result of :func:`move_state`: the operator's id, and its new subtasks."""
    (operator,) = read_metadata(data).operators
    return operator.operator_id, [each for each in operator.subtasks if isinstance(each, SubtaskState)]


class _Writer:
    """Implements :class:`cdr_core.flink.state.Write`: into the target's directory, or into ``_metadata`` if it is
    small.
    """

    def __init__(self, sink: CheckpointSink, attempt: str, moved: Moved) -> None:
        self._sink, self._attempt, self._moved = sink, attempt, moved

    def __call__(self, name: str, chunks: Iterable[bytes]) -> StreamHandle:
        rest = iter(chunks)
        head = _head(rest)
        if len(head) <= INLINE:
            self._moved.written += len(head)
            return InlineBytes(name, head)
        path = file_name(f"{self._attempt}-{name}")
        output = self._sink.output(path)
        summed = Summed(output)
        try:
            for chunk in chain([head], rest):
                summed.write(chunk)
            output.finish()
        except BaseException:
            output.discard()
            raise
        reach("state.written")
        self._moved.written += summed.size
        self._moved.made.append({"path": path, "records": 0, "bytes": summed.size, "crc32c": summed.crc32c})
        return RelativeFile(path, summed.size)


def _head(chunks: Iterator[bytes]) -> bytes:
    """Return enough of the beginning to decide whether all of it is small; the rest is still in ``chunks``."""
    head = bytearray()
    for chunk in chunks:
        head += chunk
        if len(head) > INLINE:
            break
    return bytes(head)
