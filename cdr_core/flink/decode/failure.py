"""A value that its type description does not fit."""

from __future__ import annotations

from cdr_core.errors import NOWHERE, CorruptChannelState, Where
from cdr_core.kernels import decode_walk as walker
from cdr_core.kernels import values

REASONS = {
    walker.PAST_END: "runs past the end of its record",
    walker.LEFT_OVER: "leaves bytes of its record over",
    walker.BAD_LENGTH: "has an impossible length",
    walker.BAD_FLAG: "has a flag byte that Flink does not write",
    walker.SUBCLASS: "is of a subclass, whose fields the description does not know",
    walker.BAD_MASK: "has bits set beyond the fields of its mask",
    values.BAD_CHARACTER: "has a character that Flink does not write",
    values.LONE_SURROGATE: "has half of a surrogate pair, which UTF-8 cannot hold",
    values.BAD_UTF8: "is not UTF-8",
    values.TOO_LARGE: "is larger than can be shown",
    values.BAD_BOOLEAN: "is a boolean that is neither 0 nor 1",
    values.BAD_TIME: "is no date or time that exists",
    values.BAD_DECIMAL: "has more digits than its type",
    values.TOO_FINE: "is finer than its type, or no timestamp",
    values.BAD_KEY: "is a map with a null key",
    values.BAD_SPAN: "lies outside its row",
    values.NULL_KEY: "is null, which no key can be",
}

_TO_LOOK = 'to look at it, cdr elements has --replace-text and the Spark source .option("text", "replace")'


class BadValue(CorruptChannelState):
    """The first record of a batch that does not fit: ``record`` is its index, ``offset`` a byte in the batch's data.

    The caller knows the channel and raises it again with ``at`` so that the message names the place.
    """

    def __init__(
        self,
        what: str,
        *,
        where: Where = NOWHERE,
        hint: str = "",
        record: int = -1,
        offset: int = -1,
        field: str = "",
        reason: int = 0,
    ) -> None:
        super().__init__(what, where=where, hint=hint)
        self.record = record
        self.offset = offset
        self.field = field
        self.reason = reason

    @property
    def complaint(self) -> str:
        """Return what is wrong, without the record's index in a batch: callers add the record's place."""
        return _complaint("a record", self.reason, self.field)

    def at(self, where: Where, position: int) -> BadValue:
        """Return the same fault with its place; ``position`` is the record's in its virtual channel."""
        what = f"at position {position} {self.complaint}"
        return _rebuild(what, where, self.hint, self.record, self.offset, self.field, self.reason)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.what, self.where, self.hint, self.record, self.offset, self.field, self.reason))


class Faults:
    """Keeps the fault of the earliest record."""

    __slots__ = ("first",)

    def __init__(self) -> None:
        self.first: BadValue | None = None

    def note(self, reason: int, record: int, offset: int, field: str) -> None:
        """Record a fault; faults may come in any order."""
        if self.first is None or record < self.first.record:
            self.first = bad_value(reason, record, offset, field)


def _rebuild(what: str, where: Where, hint: str, record: int, offset: int, field: str, reason: int) -> BadValue:
    return BadValue(what, where=where, hint=hint, record=record, offset=offset, field=field, reason=reason)


def bad_value(reason: int, record: int, offset: int, field: str) -> BadValue:
    """Return the error for a reason of the kernels."""
    hints = {
        values.LONE_SURROGATE: f"{_TO_LOOK}; to recover it, describe the record from this field on as OPAQUE",
        values.BAD_UTF8: f"{_TO_LOOK}; to recover it, describe the field as BYTES, which is laid out alike",
        values.TOO_FINE: "describe it with precision 9, which is laid out alike",
    }
    return BadValue(
        _complaint(f"record {record}", reason, field),
        hint=hints.get(
            reason, "compare the job spec's record type with the job; if it is right, the bytes are damaged"
        ),
        record=record,
        offset=offset,
        field=field,
        reason=reason,
    )


def _complaint(record: str, reason: int, field: str) -> str:
    subject = f"field {field}" if field else "the value"
    return f"{record} does not fit its type: {subject} {REASONS[reason]}"
