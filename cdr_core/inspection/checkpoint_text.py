"""A checkpoint's description as text for a person: 100 columns, largest things first, bars where skew shows."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

WIDTH = 100
BAR = 24
NAME = 28
MOST_BARS = 16
"""Rows of one group; of more, the largest are shown and the rest is summed up."""

MOST_CHANNELS = 256
"""Channels of one side of an operator; beyond it, the bars show sums, and the text notes that."""

UNFIT = "announced sizes do not fit the chunks"
"""Shown in place of an impossible number."""

NOTHING = (
    "no operator has channel state: nothing was in flight, the checkpoint was an aligned one, or it could not be "
    "unaligned (Flink switches that off for an input that is broadcast or pointwise: forward, rescale; 2.3 also for "
    "one with a custom partitioner)"
)
"""Possible reasons why there is nothing to recover."""

_EIGHTHS = " ▏▎▍▌▋▊▉"
_SPANS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def text_of(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of one checkpoint."""
    totals = value["totals"]
    channels = sum(len(operator["channels"]) for operator in value["operators"])
    records = f"{totals['records']:,} records, " if "records" in totals else ""
    yield str(value["path"])
    yield f"  checkpoint {value['checkpoint_id']}, metadata version {value['version']}"
    yield f"  written {duration(value['age_s'])} ago, at {_time(value['modified'])} by the time of its _metadata"
    held = f"{_size(totals['bytes'])} in {_count(totals['buffers'], 'buffer')} of {_count(channels, 'channel')}"
    yield f"  in flight: {records}{held}"
    if not channels:
        yield from textwrap.wrap(NOTHING, WIDTH, initial_indent="    ", subsequent_indent="    ")
    if totals["bytes"] is None:
        yield f"    {UNFIT}; --spec reads them"
    if value["exchanges"]:
        for exchange in value["exchanges"]:
            yield from _exchange(exchange)
        yield from _largest_of_exchanges(value["exchanges"])
        yield ""
    for operator in value["operators"]:
        yield from _operator(operator, brief=bool(value["exchanges"]))
    if not value["exchanges"]:
        yield from _largest_of_operators(value["largest"])
    yield from _blocks(value["blocks"])


def _exchange(exchange: Mapping[str, Any]) -> Iterator[str]:
    loads: dict[int, tuple[int, int]] = {}
    for channel in exchange["channels"]:
        records, held = loads.get(channel["down"], (0, 0))
        loads[channel["down"]] = records + channel["records"], held + channel["bytes"]
    others = "".join(f", {count:,} {kind}" for kind, count in exchange["others"].items())
    yield ""
    yield (
        f"  exchange {_short(exchange['name'])}: {_short(exchange['upstream'])} → {_short(exchange['downstream'])} "
        f"gate {exchange['gate']}, {exchange['partitioner']}"
    )
    yield f"    {exchange['records']:,} records, {size(exchange['bytes'])}{others}{skew(b for _, b in loads.values())}"
    rows = [(f"to {down}", held, f"{records:>12,} records") for down, (records, held) in sorted(loads.items())]
    yield from bars(rows)


def _operator(operator: Mapping[str, Any], *, brief: bool) -> Iterator[str]:
    """Yield an operator: one line if a spec describes its bytes, otherwise with bars."""
    name = _short(operator["uid"] or operator["name"] or operator["id"])
    if not brief:
        yield ""
    yield f"  {name}: parallelism {operator['parallelism']} of at most {operator['max_parallelism']}"
    if brief:
        return
    for side, table in zip(("input", "output"), operator["channels"].tables, strict=True):
        held = table.numbers("bytes")
        if (held < 0).any():
            yield f"    {side} state: {UNFIT}"
        elif len(held):
            subtasks, place = np.unique(table.numbers("subtask"), return_inverse=True)
            loads = np.zeros(len(subtasks), np.int64)
            np.add.at(loads, place, held)
            many = f"; {len(held):,} channels, summed up by subtask" if len(held) > MOST_CHANNELS else ""
            yield f"    {side} state: {size(int(loads.sum()))}{skew(loads.tolist())}{many}"
            yield from bars([(f"{side} {n}", load, "") for n, load in zip(subtasks, loads.tolist(), strict=True)])


def bars(rows: list[tuple[str, int, str]]) -> Iterator[str]:
    """Yield label, bar, bytes and a note per row; of many rows the largest."""
    most = max((held for _, held, _ in rows), default=0)
    shown = rows if len(rows) <= MOST_BARS else sorted(rows, key=lambda row: -row[1])[:MOST_BARS]
    for label, held, note in shown:
        yield f"    {label:<12} {bar(held, most):<{BAR}} {size(held):>10}{note}".rstrip()
    if left := len(rows) - len(shown):
        rest = sum(held for _, held, _ in rows) - sum(held for _, held, _ in shown)
        yield f"    … and {left:,} more with {size(rest)}"


def bar(value: int, most: int) -> str:
    """Return a bar of at most ``BAR`` cells, exact to an eighth of one; any value above 0 is visible."""
    eighths = max(round(8 * BAR * value / most), 1) if value else 0
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def skew(loads: Iterable[int]) -> str:
    """Return the largest share over the mean one as text; empty for a single share."""
    values = list(loads)
    mean = sum(values) / len(values) if values else 0
    return f", skew {max(values) / mean:.1f}×" if len(values) > 1 and mean else ""


def _largest_of_exchanges(exchanges: list[dict[str, Any]]) -> Iterator[str]:
    found = [(exchange["name"], channel) for exchange in exchanges for channel in exchange["largest"]]
    found.sort(key=lambda item: -item[1]["bytes"])
    yield from _heading("largest channels", found)
    for name, channel in found[: len(exchanges[0]["largest"])]:
        place = f"{_short(name)} {channel['up']} → {channel['down']}"
        yield f"    {place:<{NAME + 14}} {size(channel['bytes']):>10}{channel['records']:>12,} records"


def _largest_of_operators(channels: list[dict[str, Any]]) -> Iterator[str]:
    yield from _heading("largest channels", channels)
    for channel in channels:
        index = "gate" if "gate" in channel else "partition"
        ends = f"{channel['side']} {channel['subtask']}, {index} {channel[index]}, channel {channel['channel']}"
        held = f"{size(channel['bytes']):>10} in {_count(channel['buffers'], 'buffer')}"
        yield f"    {_short(channel['operator']):<{NAME}} {ends:<36} {held}"


def _blocks(blocks: list[dict[str, Any]]) -> Iterator[str]:
    yield from _heading("in the way of another parallelism", blocks)
    for block in blocks:
        sentence = f"{block['what']}; {block['hint']}" if block["hint"] else block["what"]
        yield from textwrap.wrap(sentence, WIDTH, initial_indent="    ", subsequent_indent="      ")


def _heading(text: str, below: list[Any]) -> Iterator[str]:
    if below:
        yield ""
        yield f"  {text}"


def size(count: int) -> str:
    """Return bytes in the largest unit that leaves a digit before the point."""
    value = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{count} bytes" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


def _size(count: int | None) -> str:
    return "an unknown number of bytes" if count is None else size(count)


def duration(seconds: float) -> str:
    """Return the duration in its two largest units: 3 h 12 min."""
    left = round(seconds)
    parts: list[str] = []
    for length, unit in _SPANS:
        if left >= length or parts:
            parts.append(f"{left // length} {unit}")
            left %= length
        if len(parts) == 2:
            break
    return " ".join(parts) or "0 s"


def _time(iso: str) -> str:
    return iso.replace("T", " ").replace("+00:00", " UTC")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _short(name: str) -> str:
    return name if len(name) <= NAME else f"{name[: NAME - 1]}…"
