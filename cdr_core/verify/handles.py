"""State handles of ``_metadata``. For state that is not in flight, shape and streams are kept apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cdr_core.verify.cursor import Cursor

MAX_DEPTH = 8
"""Most levels of handles inside handles; real ones nest two or three deep."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Bytes of a handle: inline, or ``length`` bytes (``None`` = to the end) of a file from ``start``.

    ``relative``: ``path`` is relative to the checkpoint's directory. ``size`` is the size of the whole file that the
    handle states (``None`` = not stated); ``label`` holds its other fields, which stay the same when a file is renamed.
    """

    inline: bytes | None = None
    path: str = ""
    relative: bool = False
    start: int = 0
    length: int | None = None
    size: int | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """Handles of state: their bytes in ``_metadata`` without the streams, and the streams in their order."""

    shape: bytes = b""
    streams: tuple[Stream, ...] = ()


class Walk:
    """Records the streams that are read between its creation and :meth:`done`."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor, self._start, self._first = cursor, cursor.at, len(cursor.spans)

    def done(self) -> State:
        at, parts, streams = self._start, [], []
        for start, end, stream in self._cursor.spans[self._first :]:
            parts.append(self._cursor.between(at, start))
            streams.append(stream)
            at = end
        del self._cursor.spans[self._first :]
        return State(b"".join([*parts, self._cursor.between(at, self._cursor.at)]), tuple(streams))


def read_stream(cursor: Cursor, depth: int = 0) -> Stream | None:
    """Read a stream handle; ``None`` is the null handle."""
    start, tag = cursor.at, cursor.i8()
    if tag == 0:
        return None
    if tag == 3 and depth < MAX_DEPTH:
        _key_groups(cursor)
        return read_stream(cursor, depth + 1)
    stream = _stream(cursor, tag)
    cursor.spans.append((start, cursor.at, stream))
    return stream


def _stream(cursor: Cursor, tag: int) -> Stream:
    match tag:
        case 1:
            name = cursor.utf()
            return Stream(inline=cursor.take(cursor.i32()), label=name)
        case 2:
            size = cursor.i64()
            return Stream(path=cursor.utf(), size=_known(size))
        case 6:
            path = cursor.utf()
            return Stream(path=path, relative=True, size=_known(cursor.i64()))
        case 15:
            start, length, scope = cursor.i64(), cursor.i64(), cursor.i32()
            path = cursor.utf()
            return Stream(path=path, start=start, length=length, label=f"{scope} {cursor.utf()}")
        case 16:
            return Stream(inline=b"")
    raise cursor.corrupt(f"a stream handle has the unknown tag {tag}")


def _known(size: int) -> int | None:
    """Return the size; -1 means that the file system did not know it."""
    return None if size == -1 else size


def walk_operator_state(cursor: Cursor) -> None:
    """Read zero or one handle of managed or raw operator state."""
    for _ in range(cursor.count()):
        tag = cursor.i8()
        if tag == 0:
            continue
        if tag not in (4, 17):
            raise cursor.corrupt(f"an operator state handle has the unknown tag {tag}")
        for _ in range(cursor.count(7)):
            cursor.utf()
            cursor.i8()
            cursor.take(8 * cursor.count(8))
        if tag == 17:
            cursor.utf()
            cursor.utf()
            cursor.i8()
        read_stream(cursor)


def walk_keyed_state(cursor: Cursor, depth: int = 0) -> None:
    """Read one handle of managed or raw keyed state."""
    tag = cursor.i8()
    if tag == 0:
        return
    walk = _KEYED.get(tag)
    if walk is None or depth > MAX_DEPTH:
        raise cursor.corrupt(f"a keyed state handle has the unknown tag {tag}")
    walk(cursor, tag, depth)


def _key_groups(cursor: Cursor) -> None:
    cursor.i32()
    cursor.take(8 * cursor.count(8))


def _walk_groups(cursor: Cursor, tag: int, _depth: int) -> None:
    _key_groups(cursor)
    read_stream(cursor)
    if tag == 12:
        cursor.utf()


def _walk_incremental(cursor: Cursor, tag: int, _depth: int) -> None:
    cursor.i64()
    cursor.utf()
    cursor.take(8)
    if tag == 11:
        cursor.i64()
    read_stream(cursor)
    for _shared_then_private in range(2):
        for _ in range(cursor.count(3)):
            cursor.utf()
            read_stream(cursor)
    if tag == 11:
        cursor.utf()


def _walk_changelog(cursor: Cursor, tag: int, depth: int) -> None:
    cursor.take(16)
    for _materialized_then_not in range(2):
        for _ in range(cursor.count()):
            walk_keyed_state(cursor, depth + 1)
    cursor.i64()
    if tag == 14:
        cursor.i64()
    cursor.utf()


def _walk_increment_in_memory(cursor: Cursor, _tag: int, _depth: int) -> None:
    cursor.take(24)
    for _ in range(cursor.count(8)):
        cursor.i32()
        cursor.take(cursor.i32())
    cursor.utf()


def _walk_increment_in_files(cursor: Cursor, tag: int, _depth: int) -> None:
    cursor.take(8)
    for _ in range(cursor.count(9)):
        cursor.i64()
        read_stream(cursor)
    cursor.take(16)
    cursor.utf()
    if tag == 13:
        cursor.utf()


_KEYED: dict[int, Callable[[Cursor, int, int], None]] = {
    3: _walk_groups,
    5: _walk_incremental,
    7: _walk_groups,
    8: _walk_changelog,
    9: _walk_increment_in_memory,
    10: _walk_increment_in_files,
    11: _walk_incremental,
    12: _walk_groups,
    13: _walk_increment_in_files,
    14: _walk_changelog,
}
