"""Divides a large channel into ranges that start on an element and can be read in parallel."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from cdr_core.channels.channel_source import open_channel, open_planned, sides
from cdr_core.channels.remote_state import is_remote
from cdr_core.errors import CdrError
from cdr_core.flink.checkpoint import FileLocation
from cdr_core.flink.virtual_channel import windows
from cdr_core.planning.plan import Plan

WINDOW = 1024 * 1024
"""Bytes scanned at once."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Logical bytes [begin, end) of virtual channel ``channel``; ``end`` is ``None`` where it ends with the channel.

    ``position`` is the first element's.
    """

    channel: int
    begin: int = 0
    end: int | None = None
    position: int = 0


def stretches(plan: Plan, number: int, size: int) -> Iterator[Stretch]:
    """Yield a channel in stretches of at most ``size`` bytes where its elements allow it, in order.

    Only a scan finds where elements begin. A smaller channel is not scanned, and one that would have to be fetched
    stays whole. Damage ends the scan: the reader of the last stretch reports it, behind the sound elements.
    """
    begin = position = 0
    if plan.channels[number].bytes > size and not _is_remote(plan, number):
        with suppress(CdrError):
            channel, step = open_channel(plan, number), min(WINDOW, size // 4)
            for window in windows(channel, 0, channel.size, 0, step):
                end = window.base + int(window.ends[-1])
                if end - begin > size - step and end < channel.size:
                    yield Stretch(number, begin, end, position)
                    begin, position = end, window.position + len(window.starts)
    yield Stretch(number, begin, None, position)


def _is_remote(plan: Plan, number: int) -> bool:
    checkpoint = open_planned(plan.checkpoint, plan.metadata_sha256)
    places = [checkpoint.resolve(piece.delegate) for piece in sides(plan, number) if piece is not None]
    return any(isinstance(place, FileLocation) and is_remote(place.uri) for place in places)
