"""Records that a user wants left out because the job fails on them: named by exchange, channel and position.

``EXCHANGE:UP:DOWN:POS`` or ``EXCHANGE:UP:DOWN:FIRST-LAST``, as ``cdr elements`` numbers them, or a line of ``cdr
elements --json``. The receipt lists every record that was left out, and the verdict is *partial*.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from cdr_core.errors import PlanRefused, Refused, Where
from cdr_core.flink.element_kinds import OTHER_KINDS
from cdr_core.flink.virtual_channel import Window
from cdr_core.kernels import frames
from cdr_core.planning.plan import Plan

MOST: Final = 100_000
"""Records that can be left out of one recovery: the receipt names each of them."""

_ENTRY: Final = re.compile(r"^(.+):(\d+):(\d+):(\d+)(?:-(\d+))?$")

_SHOWN: Final = 100
"""Characters of a line in an error."""

Ranges = Sequence[tuple[int, int]]
"""Positions of one virtual channel, first and last, ascending and apart."""


@dataclass(frozen=True, slots=True, order=True)
class Drop:
    """Positions ``first`` to ``last`` of one virtual channel."""

    exchange: str
    up: int
    down: int
    first: int
    last: int

    @property
    def channel(self) -> tuple[str, int, int]:
        return self.exchange, self.up, self.down

    def __str__(self) -> str:
        positions = str(self.first) if self.first == self.last else f"{self.first}-{self.last}"
        return f"{self.exchange}:{self.up}:{self.down}:{positions}"


def parse_drops(texts: Iterable[str]) -> tuple[Drop, ...]:
    """Return the drops in order, overlaps joined; a text that is no drop is the name of a file with one per line."""
    found: list[Drop] = []
    for text in texts:
        is_drop = _ENTRY.match(text.strip()) or _is_element(text)
        found += [_parse(text)] if is_drop else [_parse(line) for line in _lines(text)]
    joined: list[Drop] = []
    for drop in sorted(found):
        if joined and joined[-1].channel == drop.channel and drop.first <= joined[-1].last + 1:
            joined[-1] = Drop(*drop.channel, joined[-1].first, max(joined[-1].last, drop.last))
        else:
            joined.append(drop)
    if sum(drop.last - drop.first + 1 for drop in joined) > MOST:
        raise Refused(f"more than {MOST} records are to be left out", hint="leave out fewer")
    return tuple(joined)


def _lines(file: str) -> Iterator[str]:
    try:
        text = Path(file.strip()).expanduser().read_text()
    except (OSError, ValueError):
        what = f"{file!r} is neither EXCHANGE:UP:DOWN:POS nor a file that can be read"
        raise Refused(what, hint="write slow:0:1:17 or slow:0:1:17-20, as cdr elements numbers records") from None
    for line in text.splitlines():
        entry = line.strip() if _is_element(line) else line.partition("#")[0].strip()
        if entry:
            yield entry


def _is_element(text: str) -> bool:
    """Return whether the text looks like a line of ``cdr elements --json``."""
    return text.lstrip().startswith("{")


def _element(text: str) -> Drop:
    """Parse a line of ``cdr elements --json``; its other fields are ignored."""
    try:
        value = json.loads(text)
        exchange, *numbers = (value[name] for name in ("exchange", "up", "down", "pos"))
    except (ValueError, KeyError, RecursionError):
        numbers, exchange = [], None
    whole = all(type(number) is int and number >= 0 for number in numbers)
    if not isinstance(exchange, str) or not whole:
        what = f"{text.strip()[:_SHOWN]!r} is no element: it needs exchange, up, down and pos"
        raise Refused(what, hint="write lines as cdr elements --json prints them")
    up, down, position = numbers
    return Drop(exchange, up, down, position, position)


def _parse(text: str) -> Drop:
    if _is_element(text):
        return _element(text)
    match = _ENTRY.match(text.strip())
    if match is None:
        raise Refused(f"{text!r} is not EXCHANGE:UP:DOWN:POS", hint="write slow:0:1:17 or slow:0:1:17-20")
    exchange, up, down, first, last = match.groups()
    drop = Drop(exchange, int(up), int(down), int(first), int(last or first))
    if drop.last < drop.first:
        raise Refused(f"{text!r} ends before it begins", hint="write the smaller position first")
    return drop


def drops_by_channel(plan: Plan, drops: Sequence[Drop]) -> dict[int, list[tuple[int, int]]]:
    """Return the ranges by number of the virtual channel; a channel that the checkpoint does not have is refused."""
    numbers = {(plan.exchanges[c.exchange].name, c.up, c.down): number for number, c in enumerate(plan.channels)}
    found: dict[int, list[tuple[int, int]]] = {}
    for drop in drops:
        number = numbers.get(drop.channel)
        if number is None:
            raise PlanRefused(
                f"there is nothing to leave out at {drop}: no records are in flight there",
                where=Where(exchange=drop.exchange, subtask=drop.down, channel=drop.up),
                hint="see cdr elements",
            )
        found.setdefault(number, []).append((drop.first, drop.last))
    return found


@dataclass(slots=True)
class Without:
    """Windows of a channel without the records at some positions; the left-out positions are complete after the last
    one.
    """

    found: Iterable[Window]
    ranges: Ranges
    where: Where
    positions: list[int] = field(default_factory=list)
    bytes: int = 0

    def __iter__(self) -> Iterator[Window]:
        end = 0
        for window in self.found:
            end = window.position + len(window.starts)
            yield from self._cut(window)
        beyond = [last for _, last in self.ranges if last >= end]
        if beyond:
            what = f"position {beyond[0]} is to be left out, and the channel has {end} elements"
            raise PlanRefused(what, where=self.where, hint="see cdr elements")

    def to_json(self) -> dict[str, Any]:
        return {"positions": self.positions, "bytes": self.bytes}

    def _cut(self, window: Window) -> Iterator[Window]:
        """Yield stretches of the window between the left-out records."""
        count, at = len(window.starts), 0
        for first, last in self.ranges:
            begin, end = max(first - window.position, at), min(last + 1 - window.position, count)
            if begin >= end:
                continue
            # yielded first: the caller may stop there, and then no more is left out
            yield from _part(window, at, begin)
            self._leave_out(window, begin, end)
            at = end
        if at == 0:
            yield window
        else:
            yield from _part(window, at, count)

    def _leave_out(self, window: Window, begin: int, end: int) -> None:
        wrong = np.flatnonzero(window.tags[begin:end] > frames.TAG_RECORD)
        if wrong.size:
            place = begin + int(wrong[0])
            kind = OTHER_KINDS[int(window.tags[place])]
            raise PlanRefused(
                f"position {window.position + place} is to be left out, and it is no record but a {kind}",
                where=self.where,
                hint="name records only",
            )
        self.positions += range(window.position + begin, window.position + end)
        self.bytes += int(window.ends[end - 1] - window.starts[begin]) + frames.LENGTH_BYTES


def _part(window: Window, begin: int, end: int) -> Iterator[Window]:
    """Yield elements [begin, end) as a window of their own."""
    if begin < end:
        skipped = int(window.starts[begin]) - frames.LENGTH_BYTES
        yield Window(
            window.data[skipped:],
            window.base + skipped,
            window.position + begin,
            window.starts[begin:end] - skipped,
            window.ends[begin:end] - skipped,
            window.tags[begin:end],
        )
