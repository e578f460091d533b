"""Output tables as lists of Parquet files: what a table says belongs to the recovery, whoever keeps the list."""

from __future__ import annotations

import builtins
import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import google_crc32c

from cdr_core.errors import Refused, Unreadable
from cdr_core.storage import join, storage_for

_MANIFEST = re.compile(r"manifest-(\d+)\.json$")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of the table, with what the table says of it (``None`` = nothing)."""

    uri: str
    records: int | None = None
    bytes: int | None = None
    crc32c: int | None = None
    fetch: Callable[[], builtins.bytes] | None = None

    def open(self) -> io.BytesIO:
        """Its bytes, by the table's own way to them if it has one; not what the table says is ``Unreadable``."""
        data = self.fetch() if self.fetch is not None else storage_for(self.uri).read(self.uri)
        if self.bytes is not None and len(data) != self.bytes:
            raise Unreadable(f"{self.uri} has {len(data)} bytes, its table says {self.bytes}", hint="it was damaged")
        if self.crc32c is not None and google_crc32c.value(data) != self.crc32c:
            raise Unreadable(f"{self.uri} was changed after it was written", hint="it was damaged")
        return io.BytesIO(data)


class Table(Protocol):
    """A table of any kind. ``ordered``: files come in the order in which they were committed."""

    ordered: bool

    def files(self) -> list[DataFile]:
        """The recovery's files that a reader of the table sees now."""

    def properties(self) -> Mapping[str, str]:
        """Those of the recovery's last publication; empty where there is none."""

    def left_aside(self) -> int:
        """Files of other recoveries."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose rows are looked for in a table that may hold more: a recovery, else a source checkpoint."""

    recovery: str | None
    source: str


def open_table(target: str, owner: Owner) -> Table:
    """The table of a target such as ``parquet:DIR``."""
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
    """These libraries take a second to import, so only whoever needs one pays for it."""
    if kind == "iceberg":
        from cdr_core.audit.independent.iceberg import open_iceberg

        return open_iceberg(address, owner)
    from cdr_core.audit.independent.paimon import open_paimon

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
        self._manifests = [_manifest(uri) for _, uri in numbered]
        self._recovery = choose_recovery(owner, [manifest["properties"] for manifest in self._manifests])

    def files(self) -> list[DataFile]:
        highest: list[Mapping[str, Any]] = self._manifests[-1]["files"]
        return [self._file(entry) for entry in highest if self._ours(entry["path"])]

    def left_aside(self) -> int:
        return sum(not self._ours(entry["path"]) for entry in self._manifests[-1]["files"])

    def properties(self) -> Mapping[str, str]:
        ours = [m["properties"] for m in self._manifests if m["properties"].get("cdr.recovery") == self._recovery]
        return ours[-1] if ours else {}

    def _ours(self, path: str) -> bool:
        """A file belongs to the publication that first listed it; one that nobody signed counts as ours."""
        for manifest in self._manifests:
            if any(entry["path"] == path for entry in manifest["files"]):
                by = manifest["properties"].get("cdr.recovery")
                return self._recovery is None or by in (None, self._recovery)
        return True

    def _file(self, entry: Mapping[str, Any]) -> DataFile:
        uri = join(self._directory, entry["path"])
        return DataFile(uri, entry["records"], entry["bytes"], entry.get("crc32c"))


def _manifest(uri: str) -> dict[str, Any]:
    try:
        found = json.loads(storage_for(uri).read(uri))
        if found["version"] != 1:
            raise Refused(f"{uri} has version {found['version']}, this cdr reads 1")
        files = [{"path": str(f["path"]), **f} for f in found["files"]]
        return {"files": files, "properties": dict(found.get("properties") or {})}
    except (ValueError, KeyError, TypeError):
        raise Unreadable(f"{uri} is no manifest", hint="it was damaged") from None


def choose_recovery(owner: Owner, publications: list[Mapping[str, str]]) -> str | None:
    """The recovery whose rows are meant; ``None`` where the table knows of none, and all rows are.

    Without a receipt the source decides; a table that several recoveries of it share needs the receipt.
    """
    present = {p["cdr.recovery"]: p.get("cdr.source-checkpoint") for p in publications if p.get("cdr.recovery")}
    if owner.recovery is not None:
        if present and owner.recovery not in present:
            raise Unreadable(f"the output holds nothing of recovery {owner.recovery}", hint="check the target")
        return owner.recovery if present else None
    if len(present) <= 1:
        return next(iter(present), None)
    of_source = [recovery for recovery, source in present.items() if source == owner.source]
    if len(of_source) == 1:
        return of_source[0]
    raise Refused(f"the output holds {len(present)} recoveries", hint="give the receipt of one: cdr verify RECEIPT")
