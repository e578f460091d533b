"""``_metadata`` of versions 2 to 6: operators, the handles of their channel state, and their other state, unread."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace

from cdr_core.errors import CorruptMetadata, SpecRefused
from cdr_core.verify.channel_handles import NO_HANDLES, HandleBuilder, Handles
from cdr_core.verify.cursor import Cursor
from cdr_core.verify.handles import State, Walk, read_stream, walk_keyed_state, walk_operator_state

MAGIC, MASTER_MAGIC = 0x4960672D, 0xC96B1696
VERSIONS = range(2, 7)


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator, its in-flight bytes on both sides, and by subtask its other state.

    ``finished`` are the subtasks that have finished; ``ended`` is not 0 if the whole operator has. ``totals`` are
    pairs: the size that a merged handle states for its channels, and the sum of their sizes.
    """

    name: str
    uid: str
    id: str
    parallelism: int
    max_parallelism: int
    coordinator: State
    ended: int
    inputs: Handles = NO_HANDLES
    outputs: Handles = NO_HANDLES
    states: dict[int, State] = field(default_factory=dict)
    finished: set[int] = field(default_factory=set)
    totals: list[tuple[int, int]] = field(default_factory=list)

    @property
    def label(self) -> str:
        return self.uid or self.name or self.id


@dataclass(frozen=True, slots=True)
class Metadata:
    """The parsed file; operators are in the file's order. ``master`` is the state of hooks, ``tail`` the properties."""

    version: int
    checkpoint_id: int
    operators: tuple[Operator, ...]
    master: bytes
    tail: bytes

    def operator(self, name: str) -> Operator:
        """Return the operator by uid (stored, or hashed to the id), else name, else id; none or several are refused."""
        hashed = uid_hash(name.encode())
        for found in (
            [o for o in self.operators if o.uid == name or o.id == hashed],
            [o for o in self.operators if o.name == name],
            [o for o in self.operators if o.id == name.lower()],
        ):
            if len(found) == 1:
                return found[0]
            if found:
                raise SpecRefused(f"{len(found)} operators answer to {name!r}", hint="name it by its id in the spec")
        raise SpecRefused(f"the checkpoint has no operator {name!r}", hint="check the job spec")


def read_metadata(data: bytes, name: str) -> Metadata:
    """Parse the whole file; invalid bytes raise :class:`CorruptMetadata` with their offset."""
    cursor = Cursor(data, name)
    if cursor.i32() != MAGIC:
        raise CorruptMetadata(f"{name} does not begin like a checkpoint's metadata", hint="give a chk-N directory")
    version = cursor.i32()
    if version not in VERSIONS:
        raise CorruptMetadata(f"{name} has version {version}", hint="versions 2 to 6 can be read")
    checkpoint_id = cursor.i64()
    hooks = cursor.at
    for _ in range(cursor.count(8)):
        if cursor.i32() & 0xFFFFFFFF != MASTER_MAGIC:
            raise cursor.corrupt("a master state does not begin as one")
        cursor.take(cursor.i32())
    master = cursor.between(hooks, cursor.at)
    operators = tuple(_operator(cursor, version) for _ in range(cursor.count(28)))
    end = cursor.at
    _require_end(cursor, version)
    return Metadata(version, checkpoint_id, operators, master, data[end:])


def _require_end(cursor: Cursor, version: int) -> None:
    """Require the end: versions 2 and 3 end with the operators, later ones with Java objects, which are not parsed."""
    if version <= 3 and cursor.left:
        raise cursor.corrupt(f"{cursor.left} bytes follow the last operator")
    if version > 3 and cursor.take(4) != b"\xac\xed\x00\x05":
        raise cursor.corrupt("the checkpoint's properties are missing")
    if version > 3 and not cursor.left:
        raise cursor.corrupt("the checkpoint's properties are empty")


def _operator(cursor: Cursor, version: int) -> Operator:
    name, uid = (cursor.utf(), cursor.utf()) if version >= 5 else ("", "")
    numbers = cursor.take(16).hex(), cursor.i32(), cursor.i32()
    walk = Walk(cursor)
    if version == 2:
        cursor.i32()
    else:
        read_stream(cursor)
    coordinator = walk.done()
    subtasks = cursor.i32()
    operator = Operator(name, uid, *numbers, coordinator, ended=min(subtasks, 0))
    if subtasks * 4 > cursor.left:
        raise cursor.corrupt(f"{subtasks} subtasks are announced where {cursor.left} bytes are left")
    sides = HandleBuilder(), HandleBuilder()
    for _ in range(subtasks):  # a negative number: the operator has finished and has no subtasks
        index = cursor.i32()
        if index >= 0:
            _subtask(cursor, version, index, operator, sides)
        else:  # the subtask has finished and has no body
            operator.finished.add(-index - 1)
    return replace(operator, inputs=sides[0].done(cursor), outputs=sides[1].done(cursor))


def _subtask(
    cursor: Cursor, version: int, index: int, operator: Operator, sides: tuple[HandleBuilder, HandleBuilder]
) -> None:
    if index in operator.states:
        raise cursor.corrupt(f"subtask {index} is described twice")
    walk = Walk(cursor)
    if version == 2:
        cursor.i64()
        if cursor.i32() > 0:
            raise cursor.corrupt("a subtask has state of a kind that Flink gave up")
    walk_operator_state(cursor)
    walk_operator_state(cursor)
    walk_keyed_state(cursor)
    walk_keyed_state(cursor)
    operator.states[index] = walk.done()
    if version >= 3:
        for side, tags in zip(sides, ((1, 3), (2, 4)), strict=True):
            for _ in range(cursor.count(9)):
                _channel_handle(cursor, version, index, operator, side, tags)
    cursor.spans.clear()


def _channel_handle(
    cursor: Cursor, version: int, index: int, operator: Operator, side: HandleBuilder, tags: tuple[int, int]
) -> None:
    tag = cursor.i8() if version >= 6 else tags[0]
    if tag not in tags:
        raise cursor.corrupt(f"a channel handle has the tag {tag}, which is none of its side")
    subtask = cursor.i32()
    if subtask != index:
        raise cursor.corrupt(f"channel state of subtask {subtask} stands under subtask {index}")
    if tag == tags[1]:
        operator.totals.append(side.add_merged(cursor, subtask))
    else:
        side.add(cursor, subtask)


def uid_hash(uid: bytes) -> str:
    """Return the operator id of a uid: murmur3 for 128 bits (x64, seed 0), little-endian halves as hex."""
    mask, c1, c2 = (1 << 64) - 1, 0x87C37B91114253D5, 0x4CF5AD432745937F

    def rotate(value: int, bits: int) -> int:
        return (value << bits | value >> (64 - bits)) & mask

    def finish(value: int) -> int:
        value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & mask
        value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & mask
        return value ^ value >> 33

    h1 = h2 = 0
    whole = len(uid) // 16 * 16
    for at in range(0, len(uid) + 1, 16):
        block = uid[at : at + 16].ljust(16, b"\0")  # zeros mix to zero, as a missing tail does
        k1, k2 = struct.unpack("<QQ", block)
        h1 ^= rotate(k1 * c1 & mask, 31) * c2 & mask
        if at < whole:
            h1 = ((rotate(h1, 27) + h2) * 5 + 0x52DCE729) & mask
        h2 ^= rotate(k2 * c2 & mask, 33) * c1 & mask
        if at < whole:
            h2 = ((rotate(h2, 31) + h1) * 5 + 0x38495AB5) & mask
    h1, h2 = h1 ^ len(uid), h2 ^ len(uid)
    h1 = (h1 + h2) & mask
    h2 = (h2 + h1) & mask
    h1, h2 = finish(h1), finish(h2)
    h1 = (h1 + h2) & mask
    h2 = (h2 + h1) & mask
    return struct.pack("<QQ", h1, h2).hex()
