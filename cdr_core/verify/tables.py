"""Output tables as lists of Parquet files: the files that belong to the recovery, for every kind of table."""

from __future__ import annotations

import builtins
import json
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cdr_core.errors import Refused, Unreadable
from cdr_core.extras import require_extra
from cdr_core.storage import join, storage_for

RECOVERY, SOURCE = "cdr.recovery", "cdr.source-checkpoint"
SOURCE_SHA256 = "cdr.source-metadata-sha256"
"""Properties of a publication: its recovery, and its source checkpoint."""

OWN, FILES, SEALED_BY = "cdr.", "cdr.files-sha256", "cdr.properties-sha256"
"""Prefix of cdr's property names; the SHA-256 of all files' names, sizes and CRC-32C; that of cdr's properties."""

_MANIFEST = re.compile(r"/manifest-([1-9]\d*)\.json$")
_FIELDS, _OF_A_FILE = {"version", "files", "properties"}, {"path", "records", "bytes", "crc32c"}
_ROWS_DIGEST = "rows_digest"
"""Field of files that releases after 0.1 wrote."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of the table, with what the table states about it (``None`` = nothing)."""

    uri: str
    records: int | None = None
    bytes: int | None = None
    crc32c: int | None = None
    rows_digest: str | None = None
    fetch: Callable[[], builtins.bytes] | None = None

    def read(self) -> builtins.bytes:
        """Return its bytes as they are now, fetched by the table's library if it has its own access."""
        return self.fetch() if self.fetch is not None else storage_for(self.uri).read(self.uri)

    @property
    def name(self) -> str:
        """Return the part of its address that stays when a table moves."""
        return self.uri.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Publication:
    """A commit of the recovery that the table still knows: the end of its location, its properties, and its files.

    ``files`` are those that it added and that a reader still sees. ``whole``: none of them has been rewritten since.
    ``intact``: the stored publication is byte for byte what cdr writes. ``metadata``: the table library's files of it.
    """

    place: str
    properties: Mapping[str, str]
    files: tuple[DataFile, ...]
    whole: bool = True
    intact: bool = True
    metadata: tuple[DataFile, ...] = ()


class Table(Protocol):
    """A table of any kind. ``ordered``: files come in the order in which they were committed."""

    ordered: bool

    def files(self) -> list[DataFile]:
        """Return the recovery's files that a reader of the table sees now."""

    def publications(self) -> list[Publication]:
        """Return the recovery's publications in order; a table in which commits expire may no longer know all."""

    def forgot(self, location: str) -> bool:
        """Return whether the commit at this location may have expired: it is not among those that the table still
        lists.
        """

    def left_aside(self) -> int:
        """Return the number of files of other recoveries."""

    def unsigned(self) -> list[DataFile]:
        """Return those among them that no publication of any recovery lists."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of the wanted rows in a table that may hold more: a recovery, else a source checkpoint."""

    recovery: str | None
    source: str


def open_table(target: str, owner: Owner) -> Table:
    """Open the table of a target such as ``parquet:DIR``."""
    kind, _, address = target.partition(":")
    if kind == "parquet" and address:
        return ParquetTable(address, owner)
    if kind in ("iceberg", "paimon") and address:
        return _open_lake(kind, address, owner)
    raise Refused(
        f"{target!r} cannot be verified",
        hint="give parquet:DIR, iceberg:CATALOG/db.table, paimon:WAREHOUSE/db.table or checkpoint:DIR",
    )


def _open_lake(kind: str, address: str, owner: Owner) -> Table:
    """Open a table of a library; each takes a second to import, so it is imported here."""
    require_extra(kind, f"a table {kind}:")
    if kind == "iceberg":
        from cdr_core.verify.iceberg import open_iceberg

        return open_iceberg(address, owner)
    from cdr_core.verify.paimon import open_paimon

    return open_paimon(address, owner)


class ParquetTable:
    """``parquet:DIR``: the files of the highest manifest, without those that came with another recovery."""

    ordered = True

    def __init__(self, directory: str, owner: Owner) -> None:
        self._directory = directory.rstrip("/")
        names = storage_for(directory).list(join(self._directory, "_cdr"))
        numbered = sorted((int(match[1]), uri) for uri in names if (match := _MANIFEST.search(uri)))
        if not numbered:
            raise Unreadable(f"nothing was published in {directory}: it has no manifest", hint="check the target")
        self._listed: list[Mapping[str, Any]] = []
        self._signed: list[tuple[str, Mapping[str, str], bool]] = []
        self._added: dict[str, int] = {}
        for number, (_, uri) in enumerate(numbered):  # each lists the files of those before it: only the last is kept
            self._listed, properties, intact = _manifest(uri)
            intact = intact and not (sums(properties) and self._marker_was_edited(properties))
            self._signed.append((uri.rpartition("/")[2], properties, intact))
            for entry in self._listed:
                self._added.setdefault(entry["path"], number)
        self._recovery = choose_recovery(owner, [properties for _, properties, _ in self._signed])

    def files(self) -> list[DataFile]:
        return [self._file(entry) for entry in self._listed if self._ours(entry["path"])]

    def left_aside(self) -> int:
        return sum(not self._ours(entry["path"]) for entry in self._listed)

    def unsigned(self) -> list[DataFile]:
        return []  # here they count as the recovery's

    def publications(self) -> list[Publication]:
        added: dict[int, list[DataFile]] = {}
        for entry in self._listed:
            added.setdefault(self._added[entry["path"]], []).append(self._file(entry))
        return [
            Publication(f"/_cdr/{name}", properties, tuple(added.get(number, ())), intact=intact)
            for number, (name, properties, intact) in enumerate(self._signed)
            if is_of(self._recovery, properties)
        ]

    def forgot(self, location: str) -> bool:
        return False  # manifests stay

    def _marker_was_edited(self, properties: Mapping[str, str]) -> bool:
        """Return whether the marker that readers wait for was edited; a reader may remove it."""
        named = f"{properties.get(RECOVERY)}-{properties.get('cdr.commit-id')}.json"
        uri = join(self._directory, "_cdr", "done", named)
        storage = storage_for(uri)
        return storage.exists(uri) and storage.read(uri) != _marker(properties)

    def _ours(self, path: str) -> bool:
        """Return whether the file is the recovery's: it belongs to the publication that listed it first, or to none."""
        by = self._signed[self._added[path]][1].get(RECOVERY)
        return self._recovery is None or by in (None, self._recovery)

    def _file(self, entry: Mapping[str, Any]) -> DataFile:
        uri = join(self._directory, entry["path"])
        return DataFile(uri, entry["records"], entry["bytes"], entry.get("crc32c"), entry.get(_ROWS_DIGEST))


def _marker(properties: Mapping[str, str]) -> builtins.bytes:
    """Return the marker of a publication with these properties; empty if they were edited, which their seal shows."""
    commit, records, watermark = (properties.get(f"cdr.{name}") for name in ("commit-id", "records", "watermark"))
    numbers = [text for text in (commit, records, watermark) if text is not None]
    if not all(text.lstrip("-").isdecimal() for text in numbers) or commit is None or records is None:
        return b""
    marker = {"version": 1, "recovery": properties.get(RECOVERY), "commit_id": int(commit), "records": int(records)}
    return json.dumps({**marker, "watermark": None if watermark is None else int(watermark)}).encode()


def is_of(recovery: str | None, properties: Mapping[str, str]) -> bool:
    """Return whether a publication with these properties is the recovery's.

    With ``None`` as recovery, return whether it lost its recovery by an edit.
    """
    return properties.get(RECOVERY) == recovery and any(name.startswith(OWN) for name in properties)


def _manifest(uri: str) -> tuple[list[Mapping[str, Any]], Mapping[str, str], bool]:
    """Return the files that it lists, the properties of its publication, and whether it is as cdr wrote it."""
    data = storage_for(uri).read(uri)
    try:
        found = json.loads(data)
        if found["version"] != 1:
            raise Refused(f"{uri} has version {found['version']}, this cdr reads 1")
        files: list[Mapping[str, Any]] = [{**f, "path": str(f["path"])} for f in found["files"]]
        _ = [(f["records"], f["bytes"]) for f in files]
        properties = dict(found["properties"])
        return files, properties, not sums(properties) or _is_as_written(found, data)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Unreadable(f"{uri} is no manifest", hint="it was damaged") from None


def sums(properties: Mapping[str, str]) -> bool:
    """Return whether a publication was made with sums of all its parts; those of older releases were not."""
    return FILES in properties or SEALED_BY in properties


def _is_as_written(found: Mapping[str, Any], data: builtins.bytes) -> bool:
    known = found.keys() == _FIELDS and all(file.keys() - {_ROWS_DIGEST} == _OF_A_FILE for file in found["files"])
    # A path in another spelling leads to the same file, and its sum knows only the file's name.
    spelled = all(posixpath.normpath(file["path"]) == file["path"] for file in found["files"])
    return known and spelled and json.dumps(found, indent=1).encode() == data


def choose_recovery(
    owner: Owner, publications: list[Mapping[str, str]], forgotten: frozenset[str] = frozenset()
) -> str | None:
    """Return the recovery whose rows are meant; ``None`` if the table knows of none, and all rows are.

    ``forgotten`` are recoveries whose files are in the table and whose publications are not any more. Without a receipt
    the source decides; a table that several recoveries of it share needs the receipt.
    """
    present = dict.fromkeys(sorted(forgotten))
    present |= {p[RECOVERY]: p.get(SOURCE) for p in publications if p.get(RECOVERY)}
    if owner.recovery is not None:
        if present and owner.recovery not in present:
            raise Unreadable(f"the output holds nothing of recovery {owner.recovery}", hint="check the target")
        return owner.recovery if present else None
    if len(present) <= 1:
        return next(iter(present), None)
    of_source = [recovery for recovery, source in present.items() if source == owner.source]
    unknown = [recovery for recovery, source in present.items() if source is None]
    for found in (of_source, unknown if not of_source else []):
        if len(found) == 1:
            return found[0]
    raise Refused(f"the output holds {len(present)} recoveries", hint="give the receipt of one: cdr verify RECEIPT")
