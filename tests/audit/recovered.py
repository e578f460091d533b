"""Recoveries to look at again: made once a module, copied by tests that damage them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import jsonschema
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdr_core.audit.receipt import sealed
from cdr_core.audit.row_digest import RowDigest
from cdr_core.commit.committable import PreparedFile
from cdr_core.commit.listeners import Notice, PartitionDone
from cdr_core.commit.sinks import Publication
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.verify.claims import read_claims
from cdr_core.verify.report import Report
from cdr_core.verify.verify import Request, verify
from tests.support import inline

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "receipt.schema.json").read_text())


@dataclass(frozen=True)
class Recovered:
    """A published recovery to ``parquet:``: where it came from, where it went, its receipt."""

    source: str
    spec: str
    output: Path
    receipt: dict[str, Any]

    def copy(self, to: Path) -> Recovered:
        """With an output of one's own; the receipt leads to it."""
        shutil.copytree(self.output, to)
        receipt = json.loads(json.dumps(self.receipt))
        receipt["recovery"]["target"] = f"parquet:{to}"
        return Recovered(self.source, self.spec, to, sealed(receipt))

    def verify(self, *, with_receipt: bool = False, source: str = "", parallelism: str = "") -> Report:
        claims = read_claims(json.dumps(self.receipt).encode(), "the receipt") if with_receipt else None
        return verify(Request(source or self.source, f"parquet:{self.output}", self.spec, parallelism, claims))

    @property
    def manifest(self) -> Path:
        return max(self.output.glob("_cdr/manifest-*.json"), key=lambda path: int(path.stem.split("-")[1]))

    @property
    def files(self) -> list[Path]:
        return [self.output / file["path"] for file in json.loads(self.manifest.read_text())["files"]]

    def rewrite(self, number: int, change: Callable[[list[dict[str, Any]]], Any]) -> None:
        """Change the rows of a file as somebody would who knows the format: the manifest agrees with it afterwards."""
        path = self.files[number]
        table = pq.read_table(path)
        rows = table.to_pylist()
        change(rows)
        pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
        self.agree()

    def agree(self, **properties: str) -> None:
        """The manifest says of the files what they are now, and has these properties, sealed."""
        manifest = json.loads(self.manifest.read_text())
        for entry, path in zip(manifest["files"], self.files, strict=True):
            data, records = path.read_bytes(), pq.read_metadata(path).num_rows
            entry |= {"records": records, "bytes": len(data), "crc32c": google_crc32c.value(data)}
            entry["rows_digest"] = digest_of(path)
        files = msgspec.convert(manifest["files"], tuple[PreparedFile, ...])
        changed = {"cdr.records": str(sum(file.records for file in files)), **properties}
        manifest["properties"] = Publication(files, manifest["properties"] | changed).signed
        self.manifest.write_text(json.dumps(manifest, indent=1))
        self._mark(manifest["properties"])

    def _mark(self, properties: Mapping[str, str]) -> None:
        """The marker says the same."""
        shutil.rmtree(self.output / "_cdr" / "done", ignore_errors=True)
        commit, records, watermark = (properties.get(f"cdr.{name}") for name in ("commit-id", "records", "watermark"))
        notice = Notice(int(commit or 0), int(records or 0), None if watermark is None else int(watermark))
        PartitionDone(str(self.output), properties["cdr.recovery"]).committed(notice)

    def publish(self, proof_sha256: str = "") -> None:
        """As if what is there now had been published: manifest and receipt agree with it."""
        self.agree(**({"cdr.proof-sha256": proof_sha256} if proof_sha256 else {}))
        manifest = json.loads(self.manifest.read_text())
        files = [{name: file[name] for name in ("path", "bytes", "crc32c")} for file in manifest["files"]]
        self.receipt["publication"].update(files=files, records=int(manifest["properties"]["cdr.records"]))
        self.receipt.update(sealed(self.receipt))


def digest_of(path: Path) -> str:
    """That of the rows of a file."""
    found = RowDigest()
    for batch in pq.ParquetFile(path).iter_batches():
        found.add(batch)
    return found.hex


def recover(source: str, spec: str, parallelism: str, folder: Path, **options: Any) -> Recovered:
    """All five phases in this process, with a home below the folder; ``options`` are those of the request."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CDR_HOME", str(folder / "home"))
        output = folder / "out"
        request = RecoveryRequest(source, spec, parallelism, f"parquet:{output}", **options)
        repository, recovery, settings = inline.start(request)
        inline.run_all(repository, recovery, settings)
        receipt = repository.receipt(recovery)
    assert receipt is not None
    return Recovered(source, spec, output, dict(receipt))


def validate(receipt: Mapping[str, Any]) -> None:
    """Holds a receipt to the published schema."""
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(receipt)))


def spoil_tag(checkpoint: Path, raw: bytes) -> None:
    """The record's first byte in the files of a checkpoint becomes one that no element has."""
    for path in checkpoint.iterdir():
        data = path.read_bytes()
        if raw in data:
            at = data.index(raw)
            path.write_bytes(data[:at] + b"\x55" + data[at + 1 :])
            return
    raise AssertionError("the record lies in two chunks; choose another")


def without(recovered: Recovered, *columns: str, only_first: bool = False) -> Recovered:
    """The same output without these columns."""
    for path in recovered.files[: 1 if only_first else None]:
        table = pq.read_table(path)
        pq.write_table(table.drop_columns([name for name in columns if name in table.column_names]), path)
    recovered.publish()
    return recovered
