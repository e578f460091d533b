"""Source and output read again and compared: the one entry of the second reader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cdr_core.audit.independent.checkpoint import Channel, Checkpoint
from cdr_core.audit.independent.claims import (
    Claims,
    check_claims,
    check_elements,
    check_ledger,
    check_sums,
    check_totals,
    readable,
)
from cdr_core.audit.independent.compare import NO_ROWS, Place, compare_channel, unknown_channels
from cdr_core.audit.independent.compare_checkpoint import compare_checkpoint
from cdr_core.audit.independent.copies import copies
from cdr_core.audit.independent.data_files import read_files, require_readable
from cdr_core.audit.independent.digests import Expected, total
from cdr_core.audit.independent.other_state import (
    check_sizes,
    check_streams,
    compare_frame,
    compare_state,
    missing_elsewhere,
    moved_state,
)
from cdr_core.audit.independent.placement import (
    Ends,
    Observed,
    checked_fully,
    ends_of,
    infer_parallelism,
    parse_parallelism,
    wanted_parallelism,
)
from cdr_core.audit.independent.published import check_published
from cdr_core.audit.independent.report import Report, Totals
from cdr_core.audit.independent.rows import Reading, RowReader, Rows, reading_of
from cdr_core.audit.independent.source import Source
from cdr_core.audit.independent.spec import Exchange, read_spec
from cdr_core.audit.independent.tables import Owner, Table, open_table
from cdr_core.errors import Refused
from cdr_core.storage import canonical, is_local


@dataclass(frozen=True, slots=True)
class Request:
    """What to compare. ``parallelism`` empty = found out from the output; ``claims`` are those of a receipt."""

    source: str
    output: str
    spec: str
    parallelism: str = ""
    claims: Claims | None = None


def verify(request: Request) -> Report:
    """The verdict. Raises ``Corrupt`` where either side cannot be read: what cannot be read was not verified."""
    exchanges = read_spec(request.spec)
    with Checkpoint(request.source) as checkpoint:
        source = Source(checkpoint, exchanges, request.claims)
        report = _compare(request, source)
        receipt = None if request.claims is None else request.claims.receipt
        return replace(report, unproven=tuple(source.keys.unproven(receipt)))


def _compare(request: Request, source: Source) -> Report:
    kind, _, address = request.output.partition(":")
    if kind == "none":
        raise Refused("target none: has no output to verify")
    if kind == "checkpoint" and address:
        with Checkpoint(address) as target:
            return _verify_checkpoint(request, source, target)
    recovery = None if request.claims is None else str(request.claims.recovery["id"])
    table = open_table(request.output, Owner(recovery, _absolute(source.checkpoint.directory)))
    return _verify_table(request, source, table)


def _verify_checkpoint(request: Request, source: Source, target: Checkpoint) -> Report:
    checkpoint = source.checkpoint
    noted = check_published(target, checkpoint.sha256, request.claims)
    wanted = wanted_parallelism(request.parallelism, checkpoint, source.exchanges) if request.parallelism else {}
    report, expected = compare_checkpoint(source, target, noted.by_cdr)
    differences = [
        *noted.differences,
        *compare_frame(checkpoint.metadata, target.metadata, wanted),
        *check_streams(checkpoint.metadata, target),
        *check_sizes(checkpoint, target),
        *compare_state(checkpoint, target),
    ]
    moved = [] if noted.by_cdr else moved_state(checkpoint.metadata, target.metadata)
    notes = [f"{name}: its state was redistributed, and nobody noted its sums: it was not compared" for name in moved]
    if missing := missing_elsewhere(target):
        notes.append(
            f"{len(missing)} files elsewhere that its state depends on cannot be found from here: {missing[0]}"
        )
    report = replace(
        report,
        differences=(*report.differences, *differences),
        unchecked=(*report.unchecked, *noted.notes, *notes),
    )
    return _with_claims(report, request.claims, checkpoint.sha256, noted.properties, expected, True, False)


def _absolute(directory: str) -> str:
    """As publications name their source."""
    place = canonical(directory)
    return str(Path(place).resolve()) if is_local(place) else place


def _verify_table(request: Request, source: Source, table: Table) -> Report:
    checkpoint = source.checkpoint
    ends = {exchange.name: ends_of(checkpoint, exchange) for exchange in source.exchanges}
    readings = {e.name: reading_of(e, ends[e.name].max_parallelism) for e in source.exchanges}
    reader = RowReader(readings)
    files = read_files(table, reader, request.claims)
    differences, notes = list(files.differences), list(files.notes)
    rows = reader.channels
    if not rows:
        require_readable(files, ())
    new = _new_parallelism(request, checkpoint, source.exchanges, ends, rows)
    differences += reader.differences
    raw = reader.raw is not False
    expected: dict[Channel, Expected] = {}
    left_out = 0
    for exchange in source.exchanges:
        end = ends[exchange.name]
        place = Place(exchange, end, new[end.upstream], new[end.downstream])
        for found in source.channels(readings[exchange.name], raw):
            expected[found.channel] = found.expected
            left_out += found.left_out
            differences += found.differences
            notes += [found.note] if found.note else []
            ours = rows.get(found.channel, NO_ROWS)
            differences += compare_channel(found.channel, place, found.expected, ours, table.ordered)
    require_readable(files, differences)
    differences += unknown_channels(rows, set(expected))
    differences += copies(table, readings, expected)
    report = Report(
        source=_sum(expected),
        output=_sum(rows),
        differences=tuple(differences),
        left_out=left_out,
        unchecked=(*_unchecked(source.exchanges, readings, ends, new, raw, request, table), *notes),
        channels=len(expected),
    )
    published = table.publications()
    properties = published[-1].properties if published else None
    return _with_claims(report, request.claims, checkpoint.sha256, properties, expected, raw, True)


def _new_parallelism(
    request: Request,
    checkpoint: Checkpoint,
    exchanges: tuple[Exchange, ...],
    ends: Mapping[str, Ends],
    rows: Mapping[Channel, Rows],
) -> dict[str, int]:
    if request.parallelism:
        return parse_parallelism(request.parallelism, checkpoint, ends.values())
    return infer_parallelism([_observed(exchange, ends[exchange.name], rows) for exchange in exchanges])


def _observed(exchange: Exchange, ends: Ends, rows: Mapping[Channel, Rows]) -> Observed:
    downs, ups = [np.empty((0, 3), np.int64)], [np.empty((0, 2), np.int64)]
    for channel, found in rows.items():
        if channel.exchange == exchange.name:
            size = len(found.positions)
            downs.append(np.stack([np.full(size, channel.down), found.groups, found.new_down], axis=1))
            ups.append(np.stack([np.full(size, channel.up), found.new_up], axis=1))
    return Observed(exchange, ends, _counted(np.concatenate(downs)), _counted(np.concatenate(ups)))


def _counted(values: np.ndarray) -> np.ndarray:
    unique, counts = np.unique(values, axis=0, return_counts=True)
    return np.concatenate([unique, counts[:, None]], axis=1)


def _unchecked(
    exchanges: tuple[Exchange, ...],
    readings: Mapping[str, Reading],
    ends: Mapping[str, Ends],
    new: Mapping[str, int],
    raw: bool,
    request: Request,
    table: Table,
) -> list[str]:
    """What a reader of the verdict must know it does not cover."""
    found = []
    for exchange in exchanges:
        reading = readings[exchange.name]
        if reading.record.unreadable:
            names = ", ".join(reading.record.unreadable)
            how = "their columns were not compared with the raw bytes" if raw else "they were not compared at all"
            found.append(f"{exchange.name}: fields {names} have types that are not read here, {how}")
        found.append(checked_fully(exchange, ends[exchange.name], new, reading.group is not None))
    if not request.parallelism:
        numbers = ", ".join(sorted({str(number) for number in new.values()}))
        found.append(f"the new parallelism was not given: owners were compared with what the rows show ({numbers})")
    if table.left_aside():
        found.append(f"{table.left_aside()} files of other recoveries in the same table were left aside")
    return [line for line in found if line]


def _sum(channels: Mapping[Channel, Expected] | Mapping[Channel, Rows]) -> Totals:
    totals = Totals()
    for found in channels.values():
        totals = totals.plus(len(found.positions), found.bytes, total(found.digests))
    return totals


def _with_claims(
    report: Report,
    claims: Claims | None,
    metadata_sha256: str,
    properties: Mapping[str, str] | None,
    expected: Mapping[Channel, Expected],
    raw: bool,
    in_table: bool,
) -> Report:
    """The report once more, with what the receipt says against it."""
    if claims is None:
        return report
    found = [*check_claims(claims, metadata_sha256, properties)]
    found += readable(check_ledger(claims, expected), "ledger")
    found += readable(check_sums(claims), "fingerprint")
    found += readable(check_elements(claims, expected, in_table), "other_elements")
    notes = () if claims.sealed else ("the receipt has no SHA-256 of its own: what only it says was not checked",)
    whole = replace(
        report,
        differences=(*report.differences, *found),
        partial=claims.partial,
        unchecked=(*report.unchecked, *notes),
    )
    output = report.output if raw else Totals(report.output.records, report.source.bytes)
    heads = readable(check_totals(claims, report.source, output, whole.verdict), "records")
    return replace(whole, differences=(*whole.differences, *heads))
