"""Java's dates and times as ISO-8601 text, and characters.

Text, because no Arrow type that tables know holds every value: an Instant has nanoseconds over two billion years. It
reads as Java prints it (a sign in front of years beyond four digits, a fraction of 3, 6 or 9 digits or none), except
that seconds are always there. Values that are moments end in Z; local ones do not.
"""

# What is an int to mypy has a machine type for numba, so these would be wrong either way.
# mypy: disable-error-code="untyped-decorator, misc, no-any-return, assignment, return-value, arg-type, call-arg"

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from cdr_core.kernels.raw_memory import load_be16, load_be32, load_be64
from cdr_core.kernels.values import LONE_SURROGATE, OK, write_utf8

INSTANT, MILLIS, TIMESTAMP, LOCALDATE, LOCALTIME, LOCALDATETIME = 0, 1, 2, 3, 4, 5
"""Layouts of a date or time; MILLIS is java.util.Date and java.sql's Date and Time."""

MAX_TIME_TEXT = 40
"""Bytes of the longest text."""

_MIN_SECOND, _MAX_SECOND = -31557014167219200, 31556889864403199  # Instant.MIN and MAX
_MAX_YEAR = 999_999_999
_NULL_32, _NULL_64 = -(2**31), -(2**63)

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Offsets = npt.NDArray[np.int32]


@njit(cache=True, nogil=True)
def write_digits(value: int, width: int, out: Bytes, used: int) -> int:
    """Write a number that is not negative, with leading zeros up to the width; return where it ends."""
    digits = width
    rest = value
    for _ in range(width):
        rest //= 10
    while rest > 0:
        digits += 1
        rest //= 10
    for k in range(digits - 1, -1, -1):
        out[used + k] = 48 + value % 10
        value //= 10
    return used + digits


@njit(cache=True, nogil=True)
def write_date(year: int, month: int, day: int, out: Bytes, used: int) -> int:
    """Write year, month, day; return where the text ends."""
    if year < 0:
        out[used] = 45
        used += 1
    elif year > 9999:
        out[used] = 43
        used += 1
    used = write_digits(abs(year), 4, out, used)
    out[used] = 45
    used = write_digits(month, 2, out, used + 1)
    out[used] = 45
    return write_digits(day, 2, out, used + 1)


@njit(cache=True, nogil=True)
def write_time(second_of_day: int, nanos: int, out: Bytes, used: int) -> int:
    """Write hours, minutes, seconds and the fraction if there is one; return where the text ends."""
    used = write_digits(second_of_day // 3600, 2, out, used)
    out[used] = 58
    used = write_digits(second_of_day // 60 % 60, 2, out, used + 1)
    out[used] = 58
    used = write_digits(second_of_day % 60, 2, out, used + 1)
    if nanos == 0:
        return used
    out[used] = 46
    if nanos % 1_000_000 == 0:
        return write_digits(nanos // 1_000_000, 3, out, used + 1)
    if nanos % 1_000 == 0:
        return write_digits(nanos // 1_000, 6, out, used + 1)
    return write_digits(nanos, 9, out, used + 1)


@njit(cache=True, nogil=True)
def write_moment(seconds: int, nanos: int, zone: bool, out: Bytes, used: int) -> int:
    """Write seconds since 1970 as date and time in UTC; return where the text ends."""
    days = seconds // 86400
    # The civil calendar from a day number, in eras of 400 years that begin on 1 March.
    shifted = days + 719468
    era = shifted // 146097
    day_of_era = shifted - era * 146097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    march_month = (5 * day_of_year + 2) // 153
    month = march_month + 3 if march_month < 10 else march_month - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    used = write_date(year, month, day_of_year - (153 * march_month + 2) // 5 + 1, out, used)
    out[used] = 84
    used = write_time(seconds - days * 86400, nanos, out, used + 1)
    if zone:
        out[used] = 90
        used += 1
    return used


@njit(cache=True, nogil=True)
def is_date(year: int, month: int, day: int) -> bool:
    """Return whether the date exists in Java's calendar."""
    if abs(year) > _MAX_YEAR or month < 1 or month > 12 or day < 1 or day > 31:
        return False
    if month == 2:
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        return day <= (29 if leap else 28)
    return day <= 30 or month not in (4, 6, 9, 11)


@njit(cache=True, nogil=True)
def is_null_date(data: Bytes, at: int) -> bool:
    """Return whether the bytes are the null of a date: a year that no date has, and two more bytes."""
    return np.int32(load_be32(data, at)) == _NULL_32 and load_be16(data, at + 4) == 0x8000


@njit(cache=True, nogil=True)
def is_null_time(data: Bytes, at: int) -> bool:
    """Return whether the bytes are the null of a time: an hour that no time has, and six more bytes."""
    return data[at] == 0x80 and load_be16(data, at + 1) == 0x8000 and load_be32(data, at + 3) == 0x80000000


@njit(cache=True, nogil=True)
def write_local_date(data: Bytes, at: int, out: Bytes, used: int) -> int:
    """Write i32 year, i8 month, i8 day as text; return where it ends, or −1 if there is no such date."""
    year, month, day = np.int64(np.int32(load_be32(data, at))), np.int64(data[at + 4]), np.int64(data[at + 5])
    return write_date(year, month, day, out, used) if is_date(year, month, day) else -1


@njit(cache=True, nogil=True)
def write_local_time(data: Bytes, at: int, out: Bytes, used: int) -> int:
    """Write i8 hour, i8 minute, i8 second, i32 nanos as text; return where it ends, or −1 if there is no such time."""
    hour, minute, second = np.int64(data[at]), np.int64(data[at + 1]), np.int64(data[at + 2])
    nanos = np.int64(load_be32(data, at + 3))
    if hour > 23 or minute > 59 or second > 59 or nanos > 999_999_999:
        return -1
    return write_time(hour * 3600 + minute * 60 + second, nanos, out, used)


@njit(cache=True, nogil=True)
def write_instant(data: Bytes, at: int, out: Bytes, used: int) -> int:
    """Write i64 seconds, i32 nanos as text; return where it ends, −1 no such instant, −2 null."""
    seconds, nanos = np.int64(load_be64(data, at)), np.int64(np.int32(load_be32(data, at + 8)))
    if seconds == _NULL_64 and nanos == _NULL_32:
        return -2
    if seconds < _MIN_SECOND or seconds > _MAX_SECOND or nanos < 0 or nanos > 999_999_999:
        return -1
    return write_moment(seconds, nanos, True, out, used)


@njit(cache=True, nogil=True)
def write_timestamp(data: Bytes, at: int, out: Bytes, used: int) -> int:
    """Write i64 millis, i32 nanos of the second, which repeat the millis' fraction; return where the text ends, −1 if
    they do not, −2 null.
    """
    millis, nanos = np.int64(load_be64(data, at)), np.int64(np.int32(load_be32(data, at + 8)))
    if millis == _NULL_64:
        return -2 if nanos == 0 else -1
    seconds = millis // 1000
    if nanos < 0 or nanos > 999_999_999 or nanos // 1_000_000 != millis - seconds * 1000:
        return -1
    return write_moment(seconds, nanos, True, out, used)


@njit(cache=True, nogil=True)
def write_layout(data: Bytes, at: int, layout: int, out: Bytes, used: int) -> int:
    """Write one value of the layout; return where its text ends, −1 no such value, −2 null."""
    if layout == INSTANT:
        return write_instant(data, at, out, used)
    if layout == MILLIS:
        millis = np.int64(load_be64(data, at))
        if millis == _NULL_64:
            return -2
        seconds = millis // 1000
        return write_moment(seconds, (millis - seconds * 1000) * 1_000_000, True, out, used)
    if layout == TIMESTAMP:
        return write_timestamp(data, at, out, used)
    if layout == LOCALDATE:
        return -2 if is_null_date(data, at) else write_local_date(data, at, out, used)
    if layout == LOCALTIME:
        return -2 if is_null_time(data, at) else write_local_time(data, at, out, used)
    if is_null_date(data, at) and is_null_time(data, at + 6):
        return -2
    used = write_local_date(data, at, out, used)
    if used < 0:
        return -1
    out[used] = 84
    return write_local_time(data, at + 6, out, used + 1)


@njit(cache=True, nogil=True)
def gather_times(data: Bytes, positions: Positions, layout: int, offsets: Offsets, out: Bytes) -> tuple[int, int]:
    """Texts one after another: (bytes written, index of the first that does not exist or −1).

    A null, which these types tell by a value, sets its position to −1. ``out`` has MAX_TIME_TEXT bytes an entry.
    """
    used = 0
    for i in range(positions.shape[0]):
        if positions[i] >= 0:
            after = write_layout(data, positions[i], layout, out, used)
            if after == -1:
                return used, i
            if after == -2:
                positions[i] = -1
            else:
                used = after
        offsets[i + 1] = used
    return used, -1


@njit(cache=True, nogil=True)
def gather_characters(
    data: Bytes, positions: Positions, replace: bool, offsets: Offsets, out: Bytes
) -> tuple[int, int, int, int]:
    """Write Java chars as UTF-8; results and ``replace`` as in ``gather_strings``. ``out`` has three bytes an entry."""
    used = 0
    replaced = 0
    for i in range(positions.shape[0]):
        if positions[i] >= 0:
            unit = np.int64(load_be16(data, positions[i]))
            if 0xD800 <= unit <= 0xDFFF:
                if not replace:
                    return used, i, LONE_SURROGATE, replaced
                replaced += 1
                unit = 0xFFFD
            used = write_utf8(unit, out, used)
        offsets[i + 1] = used
    return used, -1, OK, replaced
