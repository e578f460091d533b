"""Where the parts of each value lie: one interpreter for every type description.

A description is compiled to rows ``(op, a, b, c, d, e)``; the walker runs them once per record and writes, for every
part that is wanted, its position into a *slot* (an int64 stream): −1 = null. Parts of variable length have a second
slot with their bytes. Nothing is compiled per type, so the compiled code is cached once and for all.

Every read is preceded by a comparison with the record's end; a count or length is compared with what is left before it
is trusted. Whether a value makes sense (a month of 13) is decided where it is converted, not here.
"""

# What is an int to mypy has a machine type for numba, so these would be wrong either way.
# mypy: disable-error-code="untyped-decorator, misc, no-any-return, assignment, return-value, arg-type, call-arg"

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit, types, uint64
from numba.extending import intrinsic

from cdr_core.kernels.raw_memory import load_be32, load_byte, load_le64

END, STOP, SKIP, FIXED, STRING, BYTES, BIG, DECIMAL, REST = 0, 1, 2, 3, 4, 5, 6, 7, 8
MASK, BIT, FLAG, POJO, MARK, LIST, NEXT = 9, 10, 11, 12, 13, 14, 15
"""Operations; the code that runs each one explains its arguments a to e."""

FIELDS = 6
"""Columns of a program."""

OK, PAST_END, LEFT_OVER, BAD_LENGTH, BAD_FLAG, SUBCLASS, BAD_MASK = 0, 1, 2, 3, 4, 5, 6
"""Reasons why a record stops the walk."""

_HIGH_BITS = uint64(0x8080808080808080)
_ALL_BITS = uint64(0xFFFFFFFFFFFFFFFF)


@intrinsic
def count_ones(typingctx, word):  # type: ignore[no-untyped-def]
    """Count the set bits of a 64-bit word."""

    def codegen(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), codegen


@njit(cache=True, nogil=True)
def skip_units(data: npt.NDArray[np.uint8], at: int, end: int, units: int) -> int:
    """Return where ``units`` varints end, or −1. Only a varint's last byte has its top bit clear, so bytes
    are counted.
    """
    while units >= 32 and at + 32 <= end:  # plain ASCII in large steps, up to the first that is not
        low, high = load_le64(data, at) | load_le64(data, at + 8), load_le64(data, at + 16) | load_le64(data, at + 24)
        if (low | high) & _HIGH_BITS != 0:
            break
        at += 32
        units -= 32
    while units >= 8 and at + 8 <= end:
        units -= np.int64(count_ones(~load_le64(data, at) & _HIGH_BITS))
        at += 8
    if units > 0 and at + 8 <= end:
        # Fewer than eight left, most often of one byte each: those are skipped at once.
        head = ~(_ALL_BITS << uint64(8 * units)) if units < 8 else _ALL_BITS
        if load_le64(data, at) & _HIGH_BITS & head == 0:
            return at + units
    while units > 0:
        if at >= end:
            return -1
        if data[at] < 0x80:
            units -= 1
        at += 1
    return at


@njit(cache=True, nogil=True)
def read_length(data: npt.NDArray[np.uint8], at: int, end: int) -> tuple[int, int]:
    """Return a string's leading varint and where it ends; −1 where there is none, or a longer one than Flink writes."""
    value = np.int64(0)
    for shift in range(0, 35, 7):
        if at >= end:
            break
        byte = np.int64(load_byte(data, at))
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (-1 if byte == 0 and shift > 0 else value), at
    return -1, at


@njit(cache=True, nogil=True)
def skip_big(data: npt.NDArray[np.uint8], at: int, end: int) -> tuple[int, int]:
    """Return (where a BigInteger ends, reason it does not); its leading i32 is 0 null, 1 to 3 a constant, else bytes +
    4.
    """
    if at + 4 > end:
        return at, PAST_END
    header = np.int64(np.int32(load_be32(data, at)))
    at += 4
    if header < 4:
        return at, (OK if header >= 0 else BAD_LENGTH)
    if header == 4 or header - 4 > end - at:
        return at, BAD_LENGTH
    return at + header - 4, OK


@njit(cache=True, nogil=True)
def walk(  # noqa: C901 - an interpreter: one branch an operation, and a call each would cost more than the work
    data: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    program: npt.NDArray[np.int64],
    store: bool,
    slots: npt.NDArray[np.int64],
    cursors: npt.NDArray[np.int64],
    registers: npt.NDArray[np.int64],
    failure: npt.NDArray[np.int64],
) -> int:
    """Run the program over every record; the index of the first record that does not fit, or −1.

    ``cursors[s]`` is where slot s is written next in ``slots``; without ``store`` it only counts. A failure is
    (reason, row of the program, byte offset); what was stored of that record is void.
    """
    for i in range(starts.shape[0]):
        at, end = starts[i], ends[i]
        reason = OK
        row = 0
        if at < 0 or at > end or end > data.shape[0]:
            reason = PAST_END
        while reason == OK:
            op, a, b = program[row, 0], program[row, 1], program[row, 2]
            position, size = at, np.int64(-1)
            if op == FIXED:  # a bytes; position to slot b
                if a > end - at:
                    reason = PAST_END
                    break
                at += a
                a = b
            elif op == STRING:  # to slots a, a + 1
                length, at = read_length(data, at, end)
                if length < 0 or length - 1 > end - at:
                    reason = BAD_LENGTH
                    break
                position = at
                size = 0
                if length == 0:
                    position = -1
                else:
                    at = skip_units(data, at, end, length - 1)
                    if at < 0:
                        at = position
                        reason = PAST_END
                        break
                    size = at - position
            elif op == BYTES:  # i32 length; to slots a, a + 1
                if end - at < 4:
                    reason = PAST_END
                    break
                size = np.int64(np.int32(load_be32(data, at)))
                at += 4
                position = at
                if size < 0 or size > end - at:
                    reason = BAD_LENGTH
                    break
                at += size
            elif op == END:
                if at != end:
                    reason = LEFT_OVER
                break
            elif op == STOP:
                break
            elif op == SKIP:  # a bytes
                if a > end - at:
                    reason = PAST_END
                    break
                at += a
                row += 1
                continue
            elif op == BIT:  # if bit b of register a is set: null to slots c to d, go on at row e
                if data[registers[a] + (b >> 3)] & (0x80 >> (b & 7)):
                    for s in range(program[row, 3], program[row, 4]):
                        if store:
                            slots[cursors[s]] = -1
                        cursors[s] += 1
                    row = program[row, 5]
                else:
                    row += 1
                continue
            elif op in (FLAG, POJO):  # a byte: a = null, then as BIT; b = a value follows
                if at >= end:
                    reason = PAST_END
                    break
                flag = np.int64(data[at])
                if flag != a and flag != b:
                    reason = SUBCLASS if op == POJO and (flag == 4 or flag == 8) else BAD_FLAG
                    break
                at += 1
                if flag == a:
                    for s in range(program[row, 3], program[row, 4]):
                        if store:
                            slots[cursors[s]] = -1
                        cursors[s] += 1
                    row = program[row, 5]
                else:
                    row += 1
                continue
            elif op == MASK:  # a bytes, kept in register b, position to slot c, of which the low d bits must be zero
                if a > end - at:
                    reason = PAST_END
                    break
                at += a
                if np.int64(data[at - 1]) & ((1 << program[row, 4]) - 1):
                    at -= 1
                    reason = BAD_MASK
                    break
                registers[b] = position
                a = program[row, 3]
            elif op == MARK:  # position to slot a
                pass
            elif op == LIST:  # i32 count to slot a and register b; without elements go on at row c
                if end - at < 4:
                    reason = PAST_END
                    break
                position = np.int64(np.int32(load_be32(data, at)))
                at += 4
                if position < 0 or position > end - at:  # every element has at least a byte
                    reason = BAD_LENGTH
                    break
                registers[b] = position
                if position == 0:
                    row = program[row, 3] - 1
            elif op == NEXT:  # one element of register a is done; if there are more, go on at row b
                registers[a] -= 1
                row = b if registers[a] > 0 else row + 1
                continue
            elif op == REST:  # to slots a, a + 1
                size = end - at
                at = end
            else:  # BIG, DECIMAL: to slots a, a + 1, from the leading i32 on
                at, reason = skip_big(data, at, end)
                if reason != OK:
                    break
                if at - position == 4 and load_be32(data, position) == 0:
                    position = -1
                    size = 0
                else:
                    if op == DECIMAL:
                        if end - at < 4:
                            reason = PAST_END
                            break
                        at += 4
                    size = at - position
            if a >= 0:
                if store:
                    slots[cursors[a]] = position
                    if size >= 0:
                        slots[cursors[a + 1]] = size
                cursors[a] += 1
                if size >= 0:
                    cursors[a + 1] += 1
            row += 1
        if reason != OK:
            failure[0], failure[1], failure[2] = reason, row, at
            return i
    return -1
