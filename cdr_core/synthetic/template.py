"""One record of a type as a template: bytes before a payload, the payload's length, bytes behind it.

Encoding a record in Python takes microseconds, far too long for gigabytes of them. So each exchange encodes some
thousands once, and a record of the checkpoint is a copy of a template with any payload of the right length and its own
numbers written over the places that hold them.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from cdr_core.flink.types import Kind, Nullable, RowData, Scalar, SqlKind, SqlType, Struct, TypeDescription
from cdr_core.flink.types.sql import STRINGS
from cdr_core.synthetic.encode import encode_value
from cdr_core.synthetic.values import Draw

_MARKER: Final = bytes.fromhex("8d7c1fb0a96e45d2935a07e4c63bf128")
"""Stands for the payload while a template is encoded."""
_SEQUENCE: Final = 0x1E3779B97F4A7C15
_ORIGIN: Final = 0x5AFE1DE5
"""Stand for the numbers that every record gets of its own."""

_STRETCHING: Final[frozenset[Kind | SqlKind]] = frozenset({Kind.STRING, Kind.BYTES, Kind.OPAQUE})
_SQL_STRETCHING: Final[frozenset[Kind | SqlKind]] = frozenset({SqlKind.VARCHAR, SqlKind.VARBINARY})
_WIDTHS: Final = {"INT": "i4", "LONG": "i8", "BIGINT": "i8"}
"""Numpy types by the names of Java's and SQL's types."""

_IN_SLOT: Final = 7
"""Up to so many bytes of a SQL text or binary are inside the row's slot: nothing to copy a payload into."""
_WORD: Final = 8


class Number(NamedTuple):
    """A field that holds a number of the record's own: ``code`` is its numpy type, ``stand_in`` marks its place."""

    field: str
    code: str
    stand_in: int

    @property
    def mark(self) -> bytes:
        """Return the bytes of the stand-in."""
        form = {"i4": "i", "i8": "q"}[self.code[1:]]
        low = self.stand_in & (0x7FFFFFFF if form == "i" else 0x7FFFFFFFFFFFFFFF)
        return struct.pack(self.code[0] + form, low)


@dataclass(frozen=True, slots=True)
class Form:
    """How records of a type are varied.

    ``payload`` is the field that stretches a record to its length (``text``: only ASCII may stand there; ``longest``:
    what its type allows). ``sequence`` counts records, ``origin`` names the upstream subtask: the last wide and the
    last other integer field outside of the key. Each may be ``None``.
    """

    record: TypeDescription
    payload: str | None
    text: bool
    longest: int
    sequence: Number | None
    origin: Number | None


class Template(NamedTuple):
    """A record's value in parts, and the places of its own numbers: from its begin, or (negative) from its end."""

    head: bytes
    payload: int
    tail: bytes
    sequence_at: int
    origin_at: int


def form_of(record: TypeDescription, key: tuple[str, ...]) -> Form:
    """Return which fields of a record are varied; fields of the key are not, or the record would move to
    another owner.
    """
    fields = _fields(record)
    keyed = {name.partition(".")[0] for name in key}
    free = {name: type_ for name, type_ in fields.items() if name not in keyed}
    payload = next((name for name in reversed(free) if _stretches(free[name])), None)
    wide = [name for name in free if _code(free[name])[1:] == "i8"]
    narrow = [name for name in free if _code(free[name])[1:] == "i4"]
    sequence = (wide or narrow)[-1] if wide or narrow else None
    others = [name for name in free if name in wide + narrow and name != sequence]
    origin = others[-1] if others else None
    return Form(
        record,
        payload,
        payload is not None and _is_text(free[payload]),
        _longest(free[payload]) if payload is not None else 0,
        Number(sequence, _code(free[sequence]), _SEQUENCE) if sequence else None,
        Number(origin, _code(free[origin]), _ORIGIN) if origin else None,
    )


def make_template(form: Form, draw: Draw, sizes: tuple[int, int]) -> Template:
    """Draw and encode one record whose value has a length in ``sizes``, as far as its type allows."""
    while True:
        value = _as_mapping(form, draw.record(form.record))
        for number in (form.sequence, form.origin):
            if number is not None:
                value[number.field] = struct.unpack(_native(number), number.mark)[0]
        head, payload, tail = _encode(form, value, draw.rng, sizes)
        if all(_marked_once(number, head, tail) for number in (form.sequence, form.origin)):
            return Template(head, payload, tail, _place(form.sequence, head, tail), _place(form.origin, head, tail))


def key_record(form: Form, draw: Draw) -> bytes:
    """Return a short record with the same key as every other record of the draw's number."""
    value = _as_mapping(form, draw.record(form.record))
    if form.payload is not None:
        value[form.payload] = "" if form.text else b""
    return encode_value(form.record, value)


def _encode(form: Form, value: dict[str, Any], rng: random.Random, sizes: tuple[int, int]) -> tuple[bytes, int, bytes]:
    aim = rng.randint(*sizes)
    if form.payload is None:
        return encode_value(form.record, value), 0, b""
    if isinstance(form.record, RowData):
        return _encode_row(form, value, aim, rng.randrange(_WORD))
    kind = _scalar_of(_fields(form.record)[form.payload])
    # As OPAQUE the field takes its encoded form, so that a record of megabytes costs no more than its head and tail.
    opaque = _with_opaque(form.record, form.payload)
    bare = len(encode_value(opaque, {**value, form.payload: b""}))
    payload = _payload_length(kind, aim - bare)
    head, _, tail = encode_value(opaque, {**value, form.payload: _prefix(kind, payload) + _MARKER}).partition(_MARKER)
    return head, payload, tail


def _encode_row(form: Form, value: dict[str, Any], aim: int, padding: int) -> tuple[bytes, int, bytes]:
    """Encode a binary row at its true length, because it contains the offset of each variable part."""
    assert form.payload is not None
    empty: Any = "" if form.text else b""
    bare = len(encode_value(form.record, {**value, form.payload: empty}))
    payload = min((aim - bare) // _WORD * _WORD - padding, form.longest)
    if payload <= _IN_SLOT:
        return encode_value(form.record, {**value, form.payload: empty}), 0, b""
    # Text must be UTF-8 while it is encoded; the marker's hex digits are, and as rare.
    mark = (_MARKER.hex().encode() if form.text else _MARKER)[:payload]
    filled = mark.ljust(payload, b"x")
    whole = encode_value(form.record, {**value, form.payload: filled.decode() if form.text else filled})
    begin = whole.index(mark)
    return whole[:begin], payload, whole[begin + payload :]


def _payload_length(kind: Kind, room: int) -> int:
    """Return the longest payload that fits into ``room`` bytes together with its length field."""
    payload = max(room - len(_prefix(kind, max(room, 0))), 0)
    return payload + 1 if len(_prefix(kind, payload + 1)) + payload + 1 <= room else payload


def _prefix(kind: Kind, length: int) -> bytes:
    if kind is Kind.OPAQUE:
        return b""
    if kind is Kind.BYTES:
        return struct.pack(">i", length)
    # A string's length is a varint of one more, seven bits a byte, least significant first.
    out, left = bytearray(), length + 1
    while left >= 0x80:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def _place(number: Number | None, head: bytes, tail: bytes) -> int:
    if number is None:
        return 0
    at = head.find(number.mark)
    return at if at >= 0 else tail.index(number.mark) - len(tail)


def _marked_once(number: Number | None, head: bytes, tail: bytes) -> bool:
    return number is None or head.count(number.mark) + tail.count(number.mark) == 1


def _native(number: Number) -> str:
    return number.code[0] + {"i4": "i", "i8": "q"}[number.code[1:]]


# --- fields of a record ---


def _fields(record: TypeDescription) -> Mapping[str, TypeDescription | SqlType]:
    """Return the outermost fields; a record without fields is its own f0."""
    inner = record.element if isinstance(record, Nullable) else record
    if isinstance(inner, Struct | RowData):
        return dict(zip(inner.names, inner.types, strict=True))
    return {"f0": record}


def _as_mapping(form: Form, value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"f0": value}


def _scalar_of(type_: TypeDescription | SqlType) -> Kind:
    inner = type_.element if isinstance(type_, Nullable) else type_
    assert isinstance(inner, Scalar)
    return inner.kind


def _unwrapped(type_: TypeDescription | SqlType) -> Kind | SqlKind | None:
    inner = type_.element if isinstance(type_, Nullable) else type_
    return inner.kind if isinstance(inner, Scalar | SqlType) else None


def _stretches(type_: TypeDescription | SqlType) -> bool:
    kinds: frozenset[Kind | SqlKind] = _SQL_STRETCHING if isinstance(type_, SqlType) else _STRETCHING
    return _unwrapped(type_) in kinds


def _is_text(type_: TypeDescription | SqlType) -> bool:
    return _unwrapped(type_) in {Kind.STRING, *STRINGS}


def _longest(type_: TypeDescription | SqlType) -> int:
    return type_.precision if isinstance(type_, SqlType) else 2**30


def _code(type_: TypeDescription | SqlType) -> str:
    """Return the numpy type of an integer field that is wide enough to count with, else nothing."""
    width = _WIDTHS.get(str(_unwrapped(type_)))
    return "" if width is None else ("<" if isinstance(type_, SqlType) else ">") + width


def _with_opaque(record: TypeDescription, field: str) -> TypeDescription:
    if isinstance(record, Nullable):
        return Nullable(_with_opaque(record.element, field))
    if isinstance(record, Struct):
        types = tuple(
            _with_opaque(type_, "f0") if name == field else type_
            for name, type_ in zip(record.names, record.types, strict=True)
        )
        return replace(record, types=types)
    return Scalar(Kind.OPAQUE)
