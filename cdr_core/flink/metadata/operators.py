"""Operator-state handles: named list, union and broadcast states and the locations of their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from cdr_core.flink.metadata.cursor import Cursor
from cdr_core.flink.metadata.offsets import Offsets
from cdr_core.flink.metadata.sink import Sink
from cdr_core.flink.metadata.streams import (
    EmptySegment,
    FileSegment,
    StreamHandle,
    read_stream,
    write_stream,
)

MODE_SPLIT: Final = 0
MODE_UNION: Final = 1
MODE_BROADCAST: Final = 2

_NULL_TAG: Final = 0
_HELD: Final = 88


@dataclass(frozen=True, slots=True)
class NamedState:
    """One state of an operator: its distribution mode, and where its parts start."""

    name: str
    mode: int
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class OperatorStateHandle:
    """The states of one subtask in one stream."""

    TAG: ClassVar[int] = 4

    states: tuple[NamedState, ...]
    delegate: StreamHandle | None

    def write(self, sink: Sink) -> None:
        _write_states(sink, self.states)
        write_stream(sink, self.delegate)


@dataclass(frozen=True, slots=True)
class MergedOperatorStateHandle:
    """As :class:`OperatorStateHandle`, in a segment of a merged file, with the directories that own such files."""

    TAG: ClassVar[int] = 17

    states: tuple[NamedState, ...]
    task_owned_directory: str
    shared_directory: str
    is_empty: bool
    delegate: FileSegment | EmptySegment

    def write(self, sink: Sink) -> None:
        _write_states(sink, self.states)
        sink.utf(self.task_owned_directory)
        sink.utf(self.shared_directory)
        sink.boolean(self.is_empty)
        write_stream(sink, self.delegate)


@dataclass(frozen=True, slots=True)
class NullOperatorState:
    """A handle that is counted and then null. Flink reads it as "no state", and never writes it."""

    TAG: ClassVar[int] = _NULL_TAG

    def write(self, sink: Sink) -> None:
        """Write nothing: the tag is the whole handle."""


OperatorHandle = OperatorStateHandle | MergedOperatorStateHandle | NullOperatorState


def read_operator_state(cursor: Cursor) -> OperatorHandle | None:
    """Read a count of 0 or 1, and that many handles."""
    at = cursor.position
    present = cursor.i32()
    if present not in (0, 1):
        raise cursor.corrupt(f"{present} operator-state handles are announced where at most one is possible", at=at)
    return _read_handle(cursor) if present else None


def write_operator_state(sink: Sink, handle: OperatorHandle | None) -> None:
    """Write a handle so that :func:`read_operator_state` returns it."""
    sink.i32(0 if handle is None else 1)
    if handle is not None:
        sink.i8(handle.TAG)
        handle.write(sink)


def _read_handle(cursor: Cursor) -> OperatorHandle:
    tag = cursor.i8()
    cursor.charge(_HELD)
    if tag == _NULL_TAG:
        return NullOperatorState()
    if tag == OperatorStateHandle.TAG:
        return OperatorStateHandle(_read_states(cursor), read_stream(cursor))
    if tag == MergedOperatorStateHandle.TAG:
        return _read_merged(cursor)
    raise cursor.corrupt(f"{tag} is not the tag of an operator-state handle", at=cursor.position - 1)


def _read_merged(cursor: Cursor) -> MergedOperatorStateHandle:
    states = _read_states(cursor)
    task_owned, shared, is_empty = cursor.utf(), cursor.utf(), cursor.boolean()
    at = cursor.position
    delegate = read_stream(cursor)
    if not isinstance(delegate, FileSegment | EmptySegment):
        raise cursor.corrupt("the operator state of a merged file is in no segment", at=at)
    return MergedOperatorStateHandle(states, task_owned, shared, is_empty, delegate)


def _read_states(cursor: Cursor) -> tuple[NamedState, ...]:
    number = cursor.count("operator states", 7, held=_HELD)
    return tuple([_read_state(cursor) for _ in range(number)])


def _read_state(cursor: Cursor) -> NamedState:
    name, mode = cursor.utf(), cursor.i8()
    if mode not in (MODE_SPLIT, MODE_UNION, MODE_BROADCAST):
        raise cursor.corrupt(f"{mode} is not a way to distribute the state {name!r}", at=cursor.position - 1)
    return NamedState(name, mode, cursor.offsets("offsets of an operator state"))


def _write_states(sink: Sink, states: tuple[NamedState, ...]) -> None:
    sink.i32(len(states))
    for state in states:
        sink.utf(state.name)
        sink.i8(state.mode)
        sink.offsets(state.offsets)
