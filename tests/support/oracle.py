"""What Flink's own classes read in a shipped checkpoint: the truth that our readers are compared with.

An oracle is a file of JSON lines, written beside the checkpoint when it was made. Here its words become ours: a kind is
one of ``cdr elements``, a missing gate is gate 0, the key group is the one Flink used for that job's kind of key.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

MAX_PARALLELISM = 128
"""That of every shipped checkpoint."""


class ChannelId(NamedTuple):
    """A virtual channel by the gate it enters and its old upstream and downstream subtask."""

    gate: int
    up: int
    down: int


@dataclass(frozen=True, slots=True)
class Element:
    """One in-flight element. The last seven are ``None`` for anything but a record."""

    channel: ChannelId
    pos: int
    from_state: str
    kind: str
    ts: int | None
    key: int | None = None
    key_group: int | None = None
    gen: int | None = None
    seq: int | None = None
    payload_len: int | None = None
    payload_crc32: int | None = None
    row_kind: str | None = None

    @property
    def is_record(self) -> bool:
        return self.kind == "record"

    def owner(self, parallelism: int) -> int:
        """The subtask that a keyed record belongs to at this parallelism."""
        assert self.key_group is not None, "only a record has an owner"
        return self.key_group * parallelism // MAX_PARALLELISM


@dataclass(frozen=True, slots=True)
class Channel:
    """Totals of one virtual channel: buffers and their bytes without length fields, on each side."""

    input_buffers: int
    input_bytes: int
    output_buffers: int
    output_bytes: int
    elements: int


class Oracle:
    """A parsed oracle. Elements of a channel are in channel order."""

    def __init__(self, file: Path) -> None:
        self._file = file

    @cached_property
    def lines(self) -> Mapping[str, tuple[dict[str, Any], ...]]:
        """The lines as they stand, by their ``type``: checkpoint, operator, keyed_state, handle, …"""
        lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
        with gzip.open(self._file, "rt") as text:
            for line in text:
                value = json.loads(line)
                lines[value["type"]].append(value)
        return {kind: tuple(values) for kind, values in lines.items()}

    @cached_property
    def elements(self) -> tuple[Element, ...]:
        return tuple(_element(line) for line in self.lines.get("element", ()))

    @property
    def records(self) -> Iterator[Element]:
        return (element for element in self.elements if element.is_record)

    @cached_property
    def by_channel(self) -> Mapping[ChannelId, tuple[Element, ...]]:
        """Every virtual channel that holds an element."""
        channels: dict[ChannelId, list[Element]] = defaultdict(list)
        for element in self.elements:
            assert element.pos == len(channels[element.channel]), f"oracle out of order at {element}"
            channels[element.channel].append(element)
        return {channel: tuple(elements) for channel, elements in channels.items()}

    @cached_property
    def channels(self) -> Mapping[ChannelId, Channel]:
        """Every virtual channel that holds state, with its totals."""
        names = Channel.__dataclass_fields__
        return {
            _channel_id(line): Channel(**{name: line[name] for name in names}) for line in self.lines.get("channel", ())
        }

    @property
    def summary(self) -> dict[str, Any]:
        (summary,) = self.lines["summary"]
        return summary


def _channel_id(line: Mapping[str, Any]) -> ChannelId:
    return ChannelId(line.get("gate", 0), line["up"], line["down"])


def _element(line: Mapping[str, Any]) -> Element:
    is_record = line["kind"] in {"record", "record_ts"}
    key_group = line.get("key_group128_row", line.get("key_group128_long"))
    return Element(
        channel=_channel_id(line),
        pos=line["pos"],
        from_state=line["from"],
        kind="record" if is_record else line["kind"],
        ts=line.get("ts"),
        key=line.get("key"),
        key_group=key_group if is_record else None,
        gen=line.get("gen"),
        seq=line.get("seq"),
        payload_len=line.get("payload_len"),
        payload_crc32=line.get("payload_crc32"),
        row_kind=line.get("row_kind"),
    )
