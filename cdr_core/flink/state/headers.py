"""The head of a file of operator state: for each state its name, how it is distributed, and its serializers.

A serializer's description has no length, and only its Java class can read it. But the names of the states are known
from ``_metadata``, and each is followed by its kind and by an option of a fixed name; so the entries can be separated
where subtasks list different states, and need not be where they list the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cdr_core.errors import Refused, Where
from cdr_core.flink.metadata import NamedState
from cdr_core.flink.metadata.modified_utf8 import encode
from cdr_core.flink.metadata.operators import MODE_BROADCAST, MODE_SPLIT, MODE_UNION
from cdr_core.flink.state.streams import LEAVE_TO_FLINK

_WITHOUT_COMPRESSION: Final = 5
_WITH_COMPRESSION: Final = 6
_SNAPPY: Final = b"\xff\x06\x00\x00sNaPpY"
"""Begins a compressed stream; a compressed file of operator state has one right behind the head."""

_MODES: Final = {MODE_SPLIT: "SPLIT_DISTRIBUTE", MODE_UNION: "UNION", MODE_BROADCAST: "BROADCAST"}
_KIND_LIST: Final = 1
_KIND_BROADCAST: Final = 2
_OPTION: Final = "OPERATOR_STATE_DISTRIBUTION_MODE"


@dataclass(frozen=True, slots=True)
class Head:
    """The head of one file: its first bytes, and ``states`` as the metadata names them."""

    data: bytes
    states: tuple[NamedState, ...]
    where: Where


def merge_heads(heads: Sequence[Head]) -> bytes:
    """Return one head that lists every state of these once.

    Refused where a state is described in two ways: only Flink could tell which of them reads the other's bytes.
    """
    first = heads[0]
    if all(head.data == first.data for head in heads):
        return first.data
    parsed = [_Parsed.of(head) for head in heads]
    for other, head in zip(parsed, heads, strict=True):
        if (other.prefix, other.suffix) != (parsed[0].prefix, parsed[0].suffix):
            raise _unlike("its states", first, head)
    lists: dict[bytes, bytes] = {}
    broadcasts: dict[bytes, bytes] = {}
    for other, head in zip(parsed, heads, strict=True):
        for merged, found in ((lists, other.lists), (broadcasts, other.broadcasts)):
            for anchor, entry in found.items():
                if merged.setdefault(anchor, entry) != entry:
                    raise _unlike(f"state {_name_in(anchor)!r}", first, head)
    return b"".join((parsed[0].prefix, _listed(lists), _listed(broadcasts), parsed[0].suffix))


@dataclass(frozen=True, slots=True)
class _Parsed:
    """Entries by their anchors, in file order. ``prefix`` is the version and the compression, ``suffix`` Snappy's."""

    prefix: bytes
    lists: dict[bytes, bytes]
    broadcasts: dict[bytes, bytes]
    suffix: bytes

    @classmethod
    def of(cls, head: Head) -> _Parsed:
        version = struct.unpack_from(">i", head.data)[0] if len(head.data) >= 4 else -1
        if version not in (_WITHOUT_COMPRESSION, _WITH_COMPRESSION):
            raise _unknown(head, f"version {version}")
        at = 4 if version == _WITHOUT_COMPRESSION else 5
        compressed = version == _WITH_COMPRESSION and head.data[4:5] == b"\x01"
        suffix = _SNAPPY if compressed else b""
        if not head.data.endswith(suffix):
            raise _unknown(head, "compressed state that does not begin as Snappy does")
        body = head.data[at : len(head.data) - len(suffix)]
        lists, rest = _section(head, body, _KIND_LIST)
        broadcasts, rest = _section(head, rest, _KIND_BROADCAST)
        if rest:
            raise _unknown(head, f"{len(rest)} bytes behind its last state")
        return cls(head.data[:at], lists, broadcasts, suffix)


def _section(head: Head, data: bytes, kind: int) -> tuple[dict[bytes, bytes], bytes]:
    """Return the entries of one kind, and what follows them: the number of the next kind's, or nothing."""
    if len(data) < 2:
        raise _unknown(head, "an end within its list of states")
    count = struct.unpack_from(">h", data)[0]
    wanted = {
        _anchor(state, kind) for state in head.states if (state.mode == MODE_BROADCAST) == (kind == _KIND_BROADCAST)
    }
    places = sorted((at, anchor) for anchor in wanted for at in _occurrences(data, anchor))
    if count != len(wanted) or len(places) != count or (places and places[0][0] != 2):
        raise _unknown(head, f"{count} states of kind {kind} where _metadata names {len(wanted)}")
    if not places:
        return {}, data[2:]
    end = len(data) if kind == _KIND_BROADCAST else _end_of_lists(head, data)
    borders = [at for at, _ in places] + [end]
    return {anchor: data[at:to] for (at, anchor), to in zip(places, borders[1:], strict=True)}, data[end:]


def _end_of_lists(head: Head, data: bytes) -> int:
    """Return the offset of the number of broadcast states: before the first of them, or at the very end if there is
    none.
    """
    anchors = [_anchor(state, _KIND_BROADCAST) for state in head.states if state.mode == MODE_BROADCAST]
    places = [at for anchor in anchors for at in _occurrences(data, anchor)]
    return (min(places) if places else len(data)) - 2


def _anchor(state: NamedState, kind: int) -> bytes:
    return b"".join((_utf(state.name), struct.pack(">ii", kind, 1), _utf(_OPTION), _utf(_MODES[state.mode])))


def _name_in(anchor: bytes) -> str:
    return anchor[2 : 2 + struct.unpack_from(">H", anchor)[0]].decode(errors="replace")


def _occurrences(data: bytes, anchor: bytes) -> list[int]:
    found, at = [], data.find(anchor)
    while at >= 0:
        found.append(at)
        at = data.find(anchor, at + 1)
    return found


def _listed(entries: dict[bytes, bytes]) -> bytes:
    return struct.pack(">h", len(entries)) + b"".join(entries.values())


def _utf(text: str) -> bytes:
    data = encode(text)
    return struct.pack(">H", len(data)) + data


def _unlike(what: str, first: Head, other: Head) -> Refused:
    return Refused(
        f"{what} of operator state is described in one way by subtask {first.where.subtask} and in another by subtask "
        f"{other.where.subtask}, so the files cannot be merged",
        where=other.where,
        hint=LEAVE_TO_FLINK,
    )


def _unknown(head: Head, what: str) -> Refused:
    return Refused(
        f"a file of operator state differs from those of other subtasks and has {what}, which is not understood",
        where=head.where,
        hint=LEAVE_TO_FLINK,
    )
