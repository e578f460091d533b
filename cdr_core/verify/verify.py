"""The entry point of the independent reader: reads source and output again and compares them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cdr_core.errors import Refused
from cdr_core.storage import canonical, is_local
from cdr_core.verify import compare
from cdr_core.verify.checkpoint import Checkpoint
from cdr_core.verify.claims import (
    Claims,
    check_claims,
    check_elements,
    check_sums,
    check_totals,
    readable,
)
from cdr_core.verify.compare import STRANGE, Matched, Place, compare_rows, doubled_by_others, match
from cdr_core.verify.compare_checkpoint import compare_checkpoint
from cdr_core.verify.data_files import read_files, require_readable
from cdr_core.verify.digests import Compared, Longs
from cdr_core.verify.ledgers import Ledgers, Records, check_ledgers
from cdr_core.verify.other_state import (
    check_sizes,
    check_streams,
    compare_frame,
    compare_state,
    missing_elsewhere,
    moved_state,
)
from cdr_core.verify.placement import (
    Ends,
    Observed,
    checked_fully,
    ends_of,
    infer_parallelism,
    parse_parallelism,
    wanted_parallelism,
)
from cdr_core.verify.published import check_published
from cdr_core.verify.report import Kind, Report, Totals, total_of
from cdr_core.verify.rows import Reading, RowReader, Rows, reading_of
from cdr_core.verify.source import Expected, Source
from cdr_core.verify.spec import Exchange, read_spec
from cdr_core.verify.tables import Owner, Table, open_table


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of a verification. ``parallelism`` empty = inferred from the output; ``claims`` come from a receipt."""

    source: str
    output: str
    spec: str
    parallelism: str = ""
    claims: Claims | None = None


def verify(request: Request) -> Report:
    """Return the report. Raise ``Corrupt`` where either side cannot be read: unread bytes are not verified."""
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
    report, ledgers = compare_checkpoint(source, target, noted.by_cdr)
    differences = [
        *noted.differences,
        *compare_frame(checkpoint.metadata, target.metadata, wanted),
        *check_streams(checkpoint.metadata, target),
        *check_sizes(checkpoint, target),
        *compare_state(checkpoint, target),
    ]
    moved = [] if noted.by_cdr else moved_state(checkpoint.metadata, target.metadata)
    notes = [f"{name}: its state was redistributed without stored sums: it was not compared" for name in moved]
    if missing := missing_elsewhere(target):
        notes.append(
            f"{len(missing)} files elsewhere that its state depends on cannot be found from here: {missing[0]}"
        )
    report = replace(
        report,
        differences=(*report.differences, *differences),
        unchecked=(*report.unchecked, *noted.notes, *notes),
    )
    return _with_claims(report, request.claims, checkpoint.sha256, noted.properties, ledgers, True, False)


def _absolute(directory: str) -> str:
    """Return the directory in the form in which publications name their source."""
    place = canonical(directory)
    return str(Path(place).resolve()) if is_local(place) else place


def _verify_table(request: Request, source: Source, table: Table) -> Report:
    checkpoint = source.checkpoint
    ends = {exchange.name: ends_of(checkpoint, exchange) for exchange in source.exchanges}
    readings = {e.name: reading_of(e, ends[e.name].max_parallelism) for e in source.exchanges}
    reader = RowReader(readings)
    files = read_files(table, reader, request.claims)
    differences = list(files.differences)
    rows = reader.rows()
    if not any(len(each.up) for each in rows.values()):
        require_readable(files, ())
    new = _new_parallelism(request, checkpoint, source.exchanges, ends, rows)
    differences += reader.differences
    compared = {exchange.name: reader.compared(exchange.name) for exchange in source.exchanges}
    expected: dict[str, Expected] = {}
    ledgers = Ledgers()
    for exchange in source.exchanges:
        name, end = exchange.name, ends[exchange.name]
        place = Place(exchange, end, new[end.upstream], new[end.downstream], compared[name] is not Compared.BYTES)
        expected[name] = source.records(readings[name], compared[name])
        matched = match(expected[name], rows[name])
        differences += compare_rows(place, expected[name], rows[name], matched, table.ordered)
        ledgers.add(
            name, expected[name], _published(expected[name], rows[name], matched, compared[name], table.ordered)
        )
    differences += source.differences
    require_readable(files, differences)
    for name in sorted(rows.keys() - expected.keys()):
        differences += compare.differences(name, Kind.EXTRA, rows[name], STRANGE)
    differences += doubled_by_others(table, readings, expected)
    notes = (*source.notes, *files.notes)
    report = Report(
        source=total_of(each.totals for each in expected.values()),
        output=total_of(each.totals for each in rows.values()),
        differences=tuple(differences),
        left_out=source.left_out,
        unchecked=(*_unchecked(source.exchanges, readings, ends, new, compared, request, table), *notes),
        channels=sum(len(each.up) for each in expected.values()),
    )
    published = table.publications()
    properties = published[-1].properties if published else None
    return _with_claims(report, request.claims, checkpoint.sha256, properties, ledgers, _has_sizes(compared), True)


def _has_sizes(compared: Mapping[str, Compared]) -> bool:
    """Return whether the output states how many bytes its records had."""
    return Compared.VALUES not in compared.values()


def _published(expected: Expected, rows: Rows, matched: Matched, compared: Compared, ordered: bool) -> Records:
    """Return the table's rows as a ledger counts them; a row that states neither bytes nor fingerprint, and equals a
    record of the source, counts as that record.
    """
    sizes, words = rows.sizes, rows.words
    if compared is Compared.VALUES:
        of = matched.index[matched.equal]
        sizes[matched.equal], words[matched.equal] = expected.sizes[of], expected.words[of]
    order = np.arange(len(rows.up)) if ordered else rows.positions
    return Records(rows.up, rows.down, rows.new_down, order, sizes, words)


def _new_parallelism(
    request: Request,
    checkpoint: Checkpoint,
    exchanges: tuple[Exchange, ...],
    ends: Mapping[str, Ends],
    rows: Mapping[str, Rows],
) -> dict[str, int]:
    if request.parallelism:
        return parse_parallelism(request.parallelism, checkpoint, ends.values())
    return infer_parallelism([_observed(exchange, ends[exchange.name], rows[exchange.name]) for exchange in exchanges])


def _observed(exchange: Exchange, ends: Ends, rows: Rows) -> Observed:
    downs = np.stack((rows.down, rows.groups, rows.new_down), axis=1)
    return Observed(exchange, ends, _counted(downs), _counted(np.stack((rows.up, rows.new_up), axis=1)))


def _counted(values: Longs) -> Longs:
    """Return distinct rows, each with its number of occurrences."""
    ordered = values[np.lexsort(values.T)]
    begins = np.flatnonzero(np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))[: len(ordered)])
    counts = np.diff(np.append(begins, len(ordered)))
    return np.concatenate([ordered[begins], counts[:, None]], axis=1)


def _unchecked(
    exchanges: tuple[Exchange, ...],
    readings: Mapping[str, Reading],
    ends: Mapping[str, Ends],
    new: Mapping[str, int],
    compared: Mapping[str, Compared],
    request: Request,
    table: Table,
) -> list[str]:
    """Return what the verdict does not cover, a sentence each."""
    found = []
    for exchange in exchanges:
        reading = readings[exchange.name]
        if reading.record.unreadable:
            names = ", ".join(reading.record.unreadable)
            raw = compared[exchange.name] is Compared.BYTES
            how = "their columns were not compared with the raw bytes" if raw else "their columns were not compared"
            found.append(f"{exchange.name}: fields {names} have types that are not read here, {how}")
        found.append(checked_fully(exchange, ends[exchange.name], new, reading.group is not None))
    if not request.parallelism:
        numbers = ", ".join(sorted({str(number) for number in new.values()}))
        found.append(f"the new parallelism was not given: owners were compared with what the rows show ({numbers})")
    if table.left_aside():
        found.append(f"{table.left_aside()} files of other recoveries in the same table were left aside")
    return [line for line in found if line]


def _with_claims(
    report: Report,
    claims: Claims | None,
    metadata_sha256: str,
    properties: Mapping[str, str] | None,
    ledgers: Ledgers,
    has_sizes: bool,
    in_table: bool,
) -> Report:
    """Return the report with the differences between it and the receipt."""
    if claims is None:
        return report
    found = [*check_claims(claims, metadata_sha256, properties)]
    found += readable(check_ledgers(claims, ledgers), "ledger")
    found += readable(check_sums(claims), "fingerprint")
    found += readable(check_elements(claims, ledgers.others, in_table), "other_elements")
    notes = () if claims.sealed else ("the receipt has no SHA-256 of its own: its other claims were not checked",)
    whole = replace(
        report,
        differences=(*report.differences, *found),
        partial=claims.partial,
        unchecked=(*report.unchecked, *notes),
    )
    output = report.output if has_sizes else Totals(report.output.records, report.source.bytes)
    heads = readable(check_totals(claims, report.source, output, whole.verdict), "records")
    return replace(whole, differences=(*whole.differences, *heads))
