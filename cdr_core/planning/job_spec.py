"""The job spec: facts that `_metadata` does not contain (exchanges, partitioners, record types, keys), as a
small YAML.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from cdr_core.errors import SpecRefused
from cdr_core.flink.types import TypeDescription, parse_type
from cdr_core.planning.custom_partitioner import is_function_name

COLUMNS = frozenset(
    {"exchange", "gate", "up", "down", "pos", "new_up", "new_down", "ts", "key_group", "row_kind", "raw"}
) | {"kind", "from_state", "length", "owner"}
"""Columns of tables and data sources; an exchange has a column of its name beside them."""

LARGEST_SPEC = 1_000_000
"""Most characters of a job spec."""


class Partitioner(StrEnum):
    """How an exchange distributes records over its downstream subtasks."""

    HASH = "hash"
    REBALANCE = "rebalance"
    SHUFFLE = "shuffle"
    GLOBAL = "global"
    CUSTOM = "custom"
    FORWARD = "forward"
    RESCALE = "rescale"
    BROADCAST = "broadcast"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One edge of the job graph. Operators are named by uid, else name, else their 32-hex id."""

    name: str
    upstream: str
    partition: int
    downstream: str
    gate: int
    partitioner: Partitioner
    record: TypeDescription
    key: tuple[str, ...]
    owner: str | None


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job's exchanges; ``sha256`` is over the text it was read from."""

    job: str
    exchanges: tuple[Exchange, ...]
    sha256: str


def parse_spec(text: str) -> JobSpec:
    """Read a spec, or refuse it with the exchange and the field that is wrong."""
    spec, refusals = examine_spec(text)
    if refusals:
        raise refusals[0]
    return spec


def examine_spec(text: str) -> tuple[JobSpec, tuple[SpecRefused, ...]]:
    """Return the spec without the invalid exchanges, and their refusals; a text that is no spec at all is refused."""
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        first_line = str(error).splitlines()[0]
        raise SpecRefused(f"the job spec is not YAML: {first_line}", hint="correct the file") from None
    if not isinstance(document, dict):
        raise SpecRefused("the job spec is not a mapping with job and exchanges", hint="cdr spec drafts one")
    _refuse_unknown(document, {"job", "exchanges"}, "the job spec")
    entries = document.get("exchanges")
    if not isinstance(entries, list) or not entries:
        raise SpecRefused("the job spec lists no exchanges", hint="cdr spec drafts one")
    exchanges: list[Exchange] = []
    refusals: list[SpecRefused] = []
    for number, entry in enumerate(entries):
        try:
            exchanges.append(_parse_exchange(entry, number))
        except SpecRefused as error:
            refusals.append(error)
    refusals += _repeats(exchanges)
    spec = JobSpec(str(document.get("job", "")), tuple(exchanges), hashlib.sha256(text.encode()).hexdigest())
    return spec, tuple(refusals)


def read_spec(spec: str) -> str:
    """Return the spec's text: given inline, or the content of the file it names."""
    if "\n" in spec or "exchanges:" in spec:
        return spec
    path = Path(spec.removeprefix("file://")).expanduser()
    try:
        with path.open() as file:
            text = file.read(LARGEST_SPEC + 1)  # a form may name any file of the host, even an endless one
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SpecRefused(f"job spec {spec!r} cannot be read: {reason}", hint="give a YAML file or its text") from None
    if len(text) > LARGEST_SPEC:
        raise SpecRefused(f"job spec {spec!r} is longer than a million characters", hint="give the file of a job spec")
    return text


def _parse_exchange(entry: Any, number: int) -> Exchange:
    if not isinstance(entry, dict):
        raise SpecRefused(f"exchange number {number + 1} is not a mapping", hint="give it a name, both ends, a record")
    name = str(entry.get("name") or f"exchange-{number}")
    label = f"exchange {name}"
    if name.lower() in COLUMNS:
        raise SpecRefused(f"{label} is named like a column that every table has", hint="give it another name")
    _refuse_unknown(entry, {"name", "upstream", "downstream", "partitioner", "record", "key", "owner"}, label)
    upstream, partition = _parse_end(entry, "upstream", "partition", label)
    downstream, gate = _parse_end(entry, "downstream", "gate", label)
    key = entry.get("key", [])
    if not isinstance(key, list):
        raise SpecRefused(f"{label}: key is not a list of field names", hint="write key: [f0]")
    return Exchange(
        name=name,
        upstream=upstream,
        partition=partition,
        downstream=downstream,
        gate=gate,
        partitioner=_parse_partitioner(entry.get("partitioner"), label),
        record=_parse_record(entry.get("record", "OPAQUE"), label),
        key=tuple(str(field) for field in key),
        owner=_parse_owner(entry, label),
    )


def _parse_owner(entry: Mapping[str, Any], label: str) -> str | None:
    text = entry.get("owner")
    if text is None:
        return None
    if entry.get("partitioner") != Partitioner.CUSTOM:
        raise SpecRefused(
            f"{label} has an owner function, but its partitioner is {entry.get('partitioner')}",
            hint="write partitioner: custom, or leave owner out",
        )
    if not isinstance(text, str) or not is_function_name(text):
        raise SpecRefused(f"{label}: owner {text!r} is not module:function", hint="write owner: routing:owner")
    return text


def _parse_record(text: Any, label: str) -> TypeDescription:
    try:
        return parse_type(str(text))
    except SpecRefused as error:
        raise SpecRefused(f"{label}: {error.what}", hint=error.hint) from None


def _parse_end(entry: Mapping[str, Any], end: str, index: str, label: str) -> tuple[str, int]:
    value = entry.get(end)
    if not isinstance(value, dict) or "operator" not in value:
        raise SpecRefused(f"{label}: {end} names no operator", hint=f"write {end}: {{operator: NAME, {index}: 0}}")
    _refuse_unknown(value, {"operator", index}, f"{label}, {end}")
    number = value.get(index, 0)
    if not isinstance(number, int) or number < 0:
        raise SpecRefused(f"{label}: {index} {number!r} is not a number from 0", hint="correct it")
    return str(value["operator"]), number


def _parse_partitioner(text: Any, label: str) -> Partitioner:
    try:
        return Partitioner(str(text))
    except ValueError:
        known = ", ".join(Partitioner)
        raise SpecRefused(f"{label}: partitioner {text!r} is not one of {known}", hint="correct it") from None


def _refuse_unknown(value: Mapping[str, Any], known: set[str], label: str) -> None:
    unknown = sorted(str(name) for name in value if name not in known)
    if unknown:
        raise SpecRefused(f"{label} has an unknown field {unknown[0]!r}", hint=f"known are {', '.join(sorted(known))}")


def _repeats(exchanges: list[Exchange]) -> Iterator[SpecRefused]:
    for what, of in (
        ("name", lambda e: e.name.lower()),  # a column each, and most tables ignore case in column names
        ("downstream gate", lambda e: (e.downstream, e.gate)),
        ("upstream partition", lambda e: (e.upstream, e.partition)),
    ):
        seen: dict[Any, str] = {}
        for exchange in exchanges:
            if of(exchange) in seen:
                yield SpecRefused(
                    f"exchange {exchange.name} repeats the {what} of exchange {seen[of(exchange)]}",
                    hint="each may appear once; the inputs of a union are gates 0, 1, … of its operator",
                )
            seen.setdefault(of(exchange), exchange.name)
