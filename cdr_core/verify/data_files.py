"""Data files of a table: read even if damaged, and compared with what the table and the receipt state about them.

A file that is not the published one is a difference by itself; its rows are compared nevertheless, because only they
identify the channel.
"""

from __future__ import annotations

import hashlib
import io
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import google_crc32c

from cdr_core.errors import Corrupt, Unreadable
from cdr_core.verify.claims import Claims, readable
from cdr_core.verify.report import Difference, Kind
from cdr_core.verify.rows import RowReader
from cdr_core.verify.tables import (
    FILES,
    OWN,
    RECOVERY,
    SEALED_BY,
    SOURCE,
    SOURCE_SHA256,
    DataFile,
    Publication,
    Table,
    sums,
)

TABLE_METADATA = ".metadata.json"
"""Suffix of Iceberg's table metadata file: the next commit of any writer replaces it."""

SHOWN = 20
"""Channels that a message lists."""


FileSums = tuple[Any, Any, Any]
"""Size, CRC-32C and digest of the rows, as the receipt states them; earlier receipts have no digest."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A file as it was read."""

    bytes: int
    crc32c: int
    records: int


@dataclass(slots=True)
class Found:
    """Result of reading the files of a table: ``sums`` by address, ``unreadable`` the errors of files that cannot be
    read.
    """

    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sums: dict[str, Sum] = field(default_factory=dict)
    unreadable: list[Corrupt] = field(default_factory=list)


def read_files(table: Table, reader: RowReader, claims: Claims | None) -> Found:
    """Read the rows of every readable file of the recovery into the reader."""
    found = Found()
    stated = _stated(claims)
    for number, file in enumerate(table.files()):
        try:
            _read_file(found, reader, number, file, stated)
        except Corrupt as error:
            found.unreadable.append(error)
    named = bool(found.differences)
    for publication in table.publications():
        found.differences += _check_sums(publication, found.sums, named)
    found.notes += _notes(table, claims)
    if claims is not None:
        found.differences += readable(_check_receipt(claims, table, found), "publication")
    return found


def _read_file(
    found: Found, reader: RowReader, number: int, file: DataFile, stated: Mapping[str, set[FileSums]]
) -> None:
    data = file.read()
    crc32c = google_crc32c.value(data)
    found.differences += _changed(file, len(data), crc32c, stated.get(file.name))
    rows = reader.add_file(number, io.BytesIO(data), file.uri)
    if rows.broken:
        found.differences.append(Difference(Kind.CHANGED, f"{file.uri} cannot be read to its end: {rows.broken}"))
    if file.records is not None and rows.records != file.records:
        what = f"{file.uri} has {rows.records} records, its table states {file.records}"
        found.differences.append(Difference(Kind.CHANGED, what))
    digests = {file.rows_digest, *(each[2] for each in stated.get(file.name, ()))} - {None}
    if not rows.broken and digests - {rows.rows_digest}:
        what = f"{file.uri} holds other rows than were written to it: they have another digest"
        found.differences.append(Difference(Kind.CHANGED, what))
    found.sums[file.uri] = Sum(len(data), crc32c, rows.records)


def require_readable(found: Found, differences: Iterable[Difference]) -> None:
    """Raise if a file could not be read: the output is not verified then; the message lists records known to be
    missing.
    """
    if not found.unreadable:
        return
    first, others = found.unreadable[0], len(found.unreadable) - 1
    missing = {str(each.channel): each.count for each in differences if each.kind is Kind.MISSING and each.channel}
    shown = ", ".join(f"{channel} ({count})" for channel, count in [*missing.items()][:SHOWN])
    rest = f" and {len(missing) - SHOWN} more channels" if len(missing) > SHOWN else ""
    more = f" (and {others} more files)" if others else ""
    without = f"; without it records are missing of {shown}{rest}" if missing else ""
    raise Unreadable(f"{first.what}{more}{without}", where=first.where, hint=first.hint) from first


def _stated(claims: Claims | None) -> Mapping[str, set[FileSums]]:
    """Return every published file of the receipt by its name."""
    stated: dict[str, set[FileSums]] = defaultdict(set)
    for publication in () if claims is None else claims.publications:
        for file in publication.get("files") or ():
            digest = file.get("rows_digest")
            sums = file.get("bytes"), file.get("crc32c"), None if digest is None else str(digest)
            stated[str(file.get("path")).rpartition("/")[2]].add(sums)
    return stated


def _changed(file: DataFile, size: int, crc32c: int, stated: set[FileSums] | None) -> Iterator[Difference]:
    if file.bytes is not None and size != file.bytes:
        yield Difference(Kind.CHANGED, f"{file.uri} has {size} bytes, its table states {file.bytes}")
    elif file.crc32c is not None and crc32c != file.crc32c:
        yield Difference(Kind.CHANGED, f"{file.uri} was changed after it was written: its CRC-32C is not the table's")
    elif stated is not None and (size, crc32c) not in {each[:2] for each in stated}:
        yield Difference(Kind.CHANGED, f"{file.uri} was changed after it was published: the receipt has another sum")


def _check_sums(publication: Publication, found: Mapping[str, Sum], named: bool) -> Iterator[Difference]:
    """Compare a publication's properties with its files. ``named``: a difference of these files is already reported."""
    properties, number = publication.properties, publication.properties.get("cdr.commit-id")
    if properties.get("cdr.commit-user") != f"cdr-{properties.get(RECOVERY)}":
        yield Difference(Kind.RECEIPT, f"publication {number} has a foreign commit user: its properties were edited")
    elif not _is_sealed(properties):
        yield Difference(Kind.RECEIPT, f"publication {number} was edited: its properties do not have their SHA-256")
    elif not publication.intact and not named:
        yield Difference(Kind.RECEIPT, f"publication {number} was edited: it is not as it was written")
    if not publication.whole:
        return
    ours = [(file.name, found[file.uri]) for file in publication.files if file.uri in found]
    records = sum(each.records for _, each in ours)
    if properties.get("cdr.records", str(records)) != str(records):
        what = f"publication {number} was made with {properties['cdr.records']} records, its files hold {records}"
        yield Difference(Kind.CHANGED, what)
    lines = sorted(f"{name} {each.bytes} {each.crc32c}" for name, each in ours)
    actual = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    if not named and properties.get(FILES, actual) != actual:
        yield Difference(Kind.CHANGED, f"the files of publication {number} are not those that it was made of")


def _is_sealed(properties: Mapping[str, str]) -> bool:
    """Return whether none of cdr's properties was changed; publications older than file sums have no seal either."""
    if not sums(properties):
        return True
    lines = sorted(
        f"{name}={value}" for name, value in properties.items() if name.startswith(OWN) and name != SEALED_BY
    )
    return properties.get(SEALED_BY) == hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _notes(table: Table, claims: Claims | None) -> Iterator[str]:
    """Yield a note for everything that could not be compared."""
    publications = table.publications()
    if publications and not publications[0].whole:
        yield "files of the recovery were rewritten by others: their rows were compared, not their bytes"
    stated = _stated(claims)
    summed = {file.uri for each in publications if each.whole and FILES in each.properties for file in each.files}
    bare = [f for f in table.files() if f.crc32c is None and f.uri not in summed and f.name not in stated]
    if bare and not (publications and not publications[0].whole):
        yield f"{len(bare)} files are listed without a sum of their bytes: only their rows were compared"
    summed_metadata = claims is not None and all("metadata" in stated for stated in claims.publications)
    if any(each.metadata for each in publications) and not summed_metadata:
        yield "no sums are known of what the table's library keeps of the publication: a receipt has them"


def _check_receipt(claims: Claims, table: Table, found: Found) -> Iterator[Difference]:
    """Compare the receipt's publications with those that the table knows."""
    known = {each.properties.get("cdr.commit-id"): each for each in table.publications()}
    for stated in claims.publications:
        number = stated.get("commit_id")
        publication = known.pop(str(number), None)
        if publication is not None:
            yield from compare_publication(claims, stated, publication)
            yield from _compare_metadata(stated, publication)
        elif table.forgot(str(stated.get("location"))):
            found.notes.append(
                f"publication {number} is no longer known to the table, its properties were not compared"
            )
        else:
            yield Difference(Kind.RECEIPT, f"the receipt names publication {number}, which the output does not have")
    for number in known:
        yield Difference(Kind.RECEIPT, f"the output has a publication {number} that the receipt does not name")


def compare_publication(claims: Claims, stated: Mapping[str, Any], publication: Publication) -> Iterator[Difference]:
    """Compare a publication as the receipt states it with the publication itself."""
    properties, number = publication.properties, stated.get("commit_id")
    for name, value in expected_properties(claims, stated).items():
        if properties.get(name) != value:
            what = f"publication {number} has {name} {properties.get(name)}, the receipt states {value}"
            yield Difference(Kind.RECEIPT, what)
    if properties.get("cdr.epoch") not in claims.epochs:
        what = f"publication {number} was made in epoch {properties.get('cdr.epoch')}, of which the receipt has nothing"
        yield Difference(Kind.RECEIPT, what)
    if not str(stated.get("location")).endswith(publication.place):
        what = (
            f"the receipt states that publication {number} is at {stated.get('location')}, it is at {publication.place}"
        )
        yield Difference(Kind.RECEIPT, what)
    listed = {str(file["path"]).rpartition("/")[2] for file in stated.get("files") or ()}
    there = {file.name for file in publication.files}
    for name in sorted(there - listed) if "files" in stated else ():
        yield Difference(Kind.EXTRA, f"{name} is in the output, and the receipt does not name it")
    for name in sorted(listed - there) if publication.whole else ():
        yield Difference(Kind.MISSING, f"{name} was published, and is not in the output any more")


def _compare_metadata(stated: Mapping[str, Any], publication: Publication) -> Iterator[Difference]:
    """Compare the sums of the table library's own files: the library ignores many changes to them."""
    there = {file.name: file for file in publication.metadata}
    for entry in stated.get("metadata") or ():
        name = str(entry["path"]).rpartition("/")[2]
        if name in there:
            data = there[name].read()
            if (len(data), google_crc32c.value(data)) != (entry["bytes"], entry["crc32c"]):
                what = f"{there[name].uri} was changed after it was published: the receipt has another sum"
                yield Difference(Kind.CHANGED, what)
        elif not name.endswith(TABLE_METADATA):
            what = f"publication {stated.get('commit_id')} was made with {name}, which the table does not list any more"
            yield Difference(Kind.CHANGED, what)


def expected_properties(claims: Claims, stated: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the properties that a publication must have, by the receipt."""
    recovery, watermark = claims.recovery, stated.get("watermark")
    # Publications older than sealed receipts name their source by its address only.
    of_source = {SOURCE_SHA256: str(claims.proof.get("source_metadata_sha256"))} if claims.sealed else {}
    return {
        **of_source,
        RECOVERY: str(recovery.get("id")),
        SOURCE: str(recovery["source"]),
        "cdr.commit-user": f"cdr-{recovery.get('id')}",
        "cdr.commit-id": str(stated.get("commit_id")),
        "cdr.records": str(stated.get("records")),
        "cdr.watermark": None if watermark is None else str(watermark),
    }
