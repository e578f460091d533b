"""A sequence of values that is kept as its bytes.

A large job has millions of channels and files in its metadata. As objects they would take many times the memory of the
file that holds them, so the long lists are checked when read, kept encoded, and decoded again while one goes over them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from cdr_core.flink.metadata.cursor import Cursor
from cdr_core.flink.metadata.sink import Sink

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Layout(Generic[T]):
    """The encoding of one element. ``check`` steps over it and refuses what ``read`` would refuse.

    ``leap`` steps over a number of elements at once. It returns False, and moves nothing, unless it is sure that
    ``check`` accepts each of them.
    """

    what: str
    smallest: int
    read: Callable[[Cursor], T]
    write: Callable[[T, Sink], None]
    check: Callable[[Cursor], object]
    leap: Callable[[Cursor, int], bool] = lambda _cursor, _count: False


class Packed(Sequence[T]):
    """An immutable sequence. Equal to another of the same elements; going over it decodes, so an index costs a walk."""

    __slots__ = ("_count", "_layout", "_raw")

    def __init__(self, layout: Layout[T], count: int, raw: bytes) -> None:
        self._layout = layout
        self._count = count
        self._raw = raw

    @classmethod
    def of(cls, layout: Layout[T], items: Iterable[T]) -> Packed[T]:
        """Return the packed values; a sequence that is packed this way already is returned as it is."""
        if isinstance(items, Packed) and items._layout is layout:
            return items
        sink, count = Sink(), 0
        for item in items:
            layout.write(item, sink)
            count += 1
        return cls(layout, count, sink.getvalue())

    @classmethod
    def read(cls, layout: Layout[T], cursor: Cursor) -> Packed[T]:
        """Return an i32 number and that many elements, each checked."""
        count = cursor.count(layout.what, layout.smallest)
        start, room = cursor.position, cursor.room
        for _ in range(0 if layout.leap(cursor, count) else count):
            layout.check(cursor)
            # The decoded elements are dropped; only the bytes stay.
            cursor.room = room
        end, cursor.position = cursor.position, start
        return cls(layout, count, cursor.raw(end - start))

    @property
    def encoded(self) -> bytes:
        """Return the elements as they are stored, one behind the other."""
        return self._raw

    def write(self, sink: Sink) -> None:
        """Write the sequence so that :meth:`read` returns it."""
        sink.i32(self._count)
        sink.raw(self._raw)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        cursor = Cursor(self._raw)
        cursor.room = sys.maxsize  # the caller of the iterator decides how many to keep
        for _ in range(self._count):
            yield self._layout.read(cursor)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        return tuple(self)[index]

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, Packed):
            return NotImplemented
        return self._layout is other._layout and self._raw == other._raw

    def __hash__(self) -> int:
        return hash(self._raw)

    def __repr__(self) -> str:
        return repr(tuple(self))
