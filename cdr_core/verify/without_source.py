"""Comparison of a table with its receipt alone, when the source checkpoint is gone: everything but the values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from cdr_core.errors import Refused
from cdr_core.verify import compare
from cdr_core.verify.checkpoint import Channel
from cdr_core.verify.claims import Claims, check_claims, check_sums, readable
from cdr_core.verify.compare import STRANGE
from cdr_core.verify.data_files import read_files, require_readable
from cdr_core.verify.digests import Compared, Longs
from cdr_core.verify.key_evidence import KeyEvidence
from cdr_core.verify.ledgers import COMMIT, Ledgers, Records, check_ledgers
from cdr_core.verify.report import Difference, Kind, Report, Totals, total_of
from cdr_core.verify.rows import Reading, RowReader, Rows
from cdr_core.verify.source import NOTHING
from cdr_core.verify.spec import read_spec
from cdr_core.verify.tables import Owner, open_table
from cdr_core.verify.types import parse_type

UNREAD = "the source was not read: that values, key groups and the ledger of read are the source's"


def verify_without_source(output: str, spec: str, claims: Claims) -> Report:
    """Return the report on what rows and files state about themselves: sums, digests, and the ledger of commit.

    Refuse a target that is no table, and a table whose rows lack the fingerprints of the bytes they were decoded from.
    """
    if output.partition(":")[0] in ("checkpoint", "none"):
        raise Refused(f"{output} cannot be verified without its source", hint="leave out --without-source")
    table = open_table(output, Owner(str(claims.recovery["id"]), ""))
    readings = {each.name: Reading(each, parse_type(each.record), None) for each in read_spec(spec)}
    reader = RowReader(readings)
    files = read_files(table, reader, claims)
    require_readable(files, ())
    rows = reader.rows()
    if any(len(rows[name].up) and reader.compared(name) is Compared.VALUES for name in rows):
        raise Refused("the rows of this table have no fingerprints", hint="verify it with its source")
    published = table.publications()
    properties = published[-1].properties if published else None
    ledgers, in_files = Ledgers(), Ledgers()
    for name in readings:
        ledgers.add(name, NOTHING, _records(rows[name], rows[name].positions))
        in_files.add(name, NOTHING, _records(rows[name], np.arange(len(rows[name].up))))
    found = [*files.differences, *reader.differences, *_strange(rows, readings)]
    found += _order(ledgers, in_files, list(readings)) if table.ordered else ()
    found += check_claims(claims, str(claims.proof.get("source_metadata_sha256")), properties)
    found += readable(check_ledgers(claims, ledgers, (COMMIT,)), "ledger")
    found += readable(check_sums(claims), "fingerprint")
    output_totals = total_of(each.totals for each in rows.values())
    found += _check_head(claims, output_totals)
    return Report(
        source=Totals(output_totals.records, output_totals.bytes),
        output=output_totals,
        differences=tuple(found),
        partial=claims.partial,
        unchecked=(UNREAD, *files.notes),
        channels=len(np.unique(ledgers.lines(COMMIT).keys[:, :3], axis=0)),
        unproven=tuple(KeyEvidence().unproven(claims.receipt)),
        values_checked=False,
    )


def _records(rows: Rows, order: Longs) -> Records:
    """Return rows as a ledger counts them."""
    return Records(rows.up, rows.down, rows.new_down, order, rows.sizes, rows.words)


def _order(by_position: Ledgers, in_files: Ledgers, names: Sequence[str]) -> Iterator[Difference]:
    """Yield lines whose records lie in the files in another order than their positions: their chain differs."""
    lines = by_position.lines(COMMIT)
    wrong = (lines.sums != in_files.lines(COMMIT).sums).any(axis=1)
    for exchange, up, down, _ in lines.keys[wrong].tolist():
        what = "records are not in the order of their positions"
        yield Difference(Kind.OUT_OF_ORDER, what, channel=Channel(names[exchange], up, down))


def _strange(rows: Mapping[str, Rows], readings: Mapping[str, Reading]) -> list[Difference]:
    return [
        difference
        for name in sorted(rows.keys() - readings.keys())
        for difference in compare.differences(name, Kind.EXTRA, rows[name], STRANGE)
    ]


def _check_head(claims: Claims, output: Totals) -> list[Difference]:
    """Compare the totals at the receipt's head that are those of the output."""
    stated = {what: claims.receipt.get(what, {}).get("published") for what in ("records", "bytes")}
    return [
        Difference(Kind.RECEIPT, f"the receipt states {count} {what} in the output, there are {getattr(output, what)}")
        for what, count in stated.items()
        if count != getattr(output, what)
    ]
