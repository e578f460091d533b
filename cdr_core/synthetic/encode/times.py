"""ISO-8601 text, as decoding gives it, to the numbers Flink writes. Python's own dates end at the year 9999."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cdr_core.synthetic.encode.refusal import refuse

_DATE = r"(?P<year>[+-]?\d{4,10})-(?P<month>\d\d)-(?P<day>\d\d)"
_TIME = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:\.(?P<fraction>\d{1,9}))?"
_MOMENT = re.compile(rf"{_DATE}[T ]{_TIME}(?P<zone>Z|\+00:00)?")
_ONLY_DATE = re.compile(_DATE)
_ONLY_TIME = re.compile(_TIME)


@dataclass(frozen=True, slots=True)
class Moment:
    """Parts of a date and a time; a missing half is zero."""

    year: int = 0
    month: int = 0
    day: int = 0
    hour: int = 0
    minute: int = 0
    second: int = 0
    nanos: int = 0

    @property
    def second_of_day(self) -> int:
        """Return seconds since midnight."""
        return self.hour * 3600 + self.minute * 60 + self.second

    @property
    def epoch_second(self) -> int:
        """Return seconds since 1970 in UTC."""
        return days_from_date(self.year, self.month, self.day) * 86400 + self.second_of_day


def parse_moment(text: object, type_text: str) -> Moment:
    """Return a date and a time."""
    return _parse(_MOMENT, text, type_text)


def parse_date(text: object, type_text: str) -> Moment:
    """Return a date."""
    return _parse(_ONLY_DATE, text, type_text)


def parse_time(text: object, type_text: str) -> Moment:
    """Return a time of day."""
    return _parse(_ONLY_TIME, text, type_text)


def _parse(pattern: re.Pattern[str], text: object, type_text: str) -> Moment:
    match = pattern.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        refuse(text, type_text, "it is no ISO-8601 text of this type")
    parts = {name: value for name, value in match.groupdict().items() if value is not None and name != "zone"}
    fraction = parts.pop("fraction", "")
    return Moment(**{name: int(value) for name, value in parts.items()}, nanos=int(fraction.ljust(9, "0")))


def days_from_date(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01 in the calendar that java.time uses."""
    year -= month <= 2
    era, year_of_era = divmod(year, 400)
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719468
