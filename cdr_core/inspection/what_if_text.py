"""A what-if as text for a person."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from cdr_core.audit.receipt import verdict_text
from cdr_core.inspection.checkpoint_text import WIDTH, bars, duration, size

LONGEST_LINE = 2 * WIDTH
"""Characters of a sample row."""


def text_of(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a what-if."""
    totals = value["totals"]
    yield f"{value['path']} at parallelism {value['parallelism']}"
    records = f"{totals['records']:,} records, " if totals["records"] is not None else ""
    yield (
        f"  in flight: {records}{size(totals['bytes'])} in {totals['channels']:,} channels, "
        f"{totals['ambiguous']:,} of them ambiguous"
    )
    if not value["refused"] and not any(each["evidence"]["sample"]["misfit"] for each in value["exchanges"]):
        yield f"  expected verdict: {verdict_text('balanced', proven=value['proven'])}"
    for exchange in value["exchanges"]:
        yield from _exchange(exchange)
    for operator in dict.fromkeys(subtask["operator"] for subtask in value["subtasks"]):
        yield from _operator(operator, value)
    yield from _cost(value)
    for title, sentences in (("warning", value["warnings"]), ("refused", [*map(_sentence, value["refused"])])):
        if sentences:
            yield ""
            yield f"  {title}"
        for sentence in sentences:
            yield from textwrap.wrap(sentence, WIDTH, initial_indent="    ", subsequent_indent="      ")


def _exchange(exchange: Mapping[str, Any]) -> Iterator[str]:
    by = f" by {', '.join(exchange['key'])}" if exchange["key"] else ""
    by = f" by {exchange['owner']}" if exchange["owner"] else by
    yield ""
    yield f"  exchange {exchange['name']}, {exchange['partitioner']}{by}"
    yield (
        f"    {exchange['upstream']} {_change(exchange['up'])}, "
        f"{exchange['downstream']} gate {exchange['gate']} {_change(exchange['down'])} "
        f"of at most {exchange['max_parallelism']}"
    )
    looked = "none must be decoded" if not exchange["ambiguous"] else ""
    looked = looked or f"{exchange['ambiguous']:,} must be decoded ({size(exchange['ambiguous_bytes'])})"
    yield f"    {exchange['channels']:,} channels, {size(exchange['bytes'])}; {looked}"
    yield from evidence_lines(exchange["evidence"])


def evidence_lines(evidence: Mapping[str, Any]) -> Iterator[str]:
    """Yield the evidence for key and types, and sample records decoded with these types."""
    for claim in ("key", "types"):
        if finding := evidence[claim]:
            proven = "proven" if finding["proven"] else "unproven"
            sentence = f"{claim}: {finding['from']}, {proven} ({finding['reason']})"
            yield from textwrap.wrap(sentence, WIDTH, initial_indent="    ", subsequent_indent="      ")
    for row in evidence["sample"]["rows"]:
        yield _cut("    sample: " + ", ".join(f"{name}={_cell(cell)}" for name, cell in row.items()))
    if ranges := evidence["sample"]["ranges"]:
        texts = [f"{name} {_cell(low)} … {_cell(high)}" for name, (low, high) in ranges.items()]
        yield from textwrap.wrap(
            "smallest … largest: " + "; ".join(texts), WIDTH, initial_indent="    ", subsequent_indent="      "
        )


def _cell(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"


def _change(pair: list[int]) -> str:
    return f"{pair[0]} → {pair[1]}" if pair[0] != pair[1] else f"stays at {pair[0]}"


def _operator(operator: str, value: Mapping[str, Any]) -> Iterator[str]:
    subtasks = [subtask for subtask in value["subtasks"] if subtask["operator"] == operator]
    sure = all(subtask["bytes_min"] == subtask["bytes_max"] for subtask in subtasks)
    how = "counted" if value["exact"] else "by the sizes of whole channels" if sure else "estimate"
    skew = f", skew {value['skew'][operator]:.1f}×" if len(subtasks) > 1 and value["skew"][operator] else ""
    yield ""
    yield f"  {operator}, new subtasks ({how}{skew})"
    yield from bars([(str(subtask["index"]), subtask["bytes"], _note(subtask)) for subtask in subtasks])
    if how == "estimate":
        yield "    ambiguous channels are split evenly over their possible owners; --exact counts"


def _note(subtask: Mapping[str, Any]) -> str:
    if subtask["records"] is not None:
        return f"{subtask['records']:>12,} records{_seconds(subtask)}"
    if subtask["bytes_min"] == subtask["bytes_max"]:
        return _seconds(subtask)
    return f"  from {size(subtask['bytes_min'])} to {size(subtask['bytes_max'])}{_seconds(subtask)}"


def _seconds(subtask: Mapping[str, Any]) -> str:
    return f", {duration(subtask['seconds'])}" if subtask["seconds"] >= 1 else ""


def _cost(value: Mapping[str, Any]) -> Iterator[str]:
    time = value["time"]
    yield ""
    yield f"  spill: about {size(value['spill'])}"
    if state := value.get("state"):
        yield (
            f"  other state: {size(state['copied_bytes'])} in {state['copied_files']:,} files copied, "
            f"{size(state['merged_bytes'])} in {state['merged_files']:,} merged"
        )
        if state["depends_on"]:
            yield f"    it will still need {len(state['depends_on']):,} files outside, such as {state['depends_on'][0]}"
    yield (
        f"  time: about {duration(time['seconds'])}, of which {duration(time['start_seconds'])} to start, "
        f"at {size(time['bytes_per_second'])}/s ({time['source']})"
    )


def _sentence(refusal: Mapping[str, Any]) -> str:
    place = f" ({refusal['where']})" if refusal["where"] else ""
    return f"{refusal['what']}{place}{'; ' if refusal['hint'] else ''}{refusal['hint']}."
