"""Comparison of a checkpoint with what was stored when it was published.

``_cdr/<SHA-256 of _metadata>.json`` is the claim, created before ``_metadata``; ``cdr-receipt.json`` beside it is a
copy of the receipt, and ``cdr-ledger.parquet`` has the ledgers, whose SHA-256 the receipt states. Claim and receipt
list every file of the checkpoint with its size and CRC-32C. Checkpoints of other tools have neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import google_crc32c

from cdr_core.errors import CdrError
from cdr_core.storage import join, storage_for
from cdr_core.verify.checkpoint import Checkpoint
from cdr_core.verify.claims import Claims, check_seal, read_claims, readable
from cdr_core.verify.data_files import compare_publication
from cdr_core.verify.handles import Stream
from cdr_core.verify.ledger_file import check_copy
from cdr_core.verify.other_state import relative_files, state_files
from cdr_core.verify.report import Difference, Kind
from cdr_core.verify.tables import Publication

RECEIPT_FILE, LEDGER_FILE, CLAIMS, CLAIM_VERSION = "cdr-receipt.json", "cdr-ledger.parquet", "_cdr", 1
_PIECE = 16 * 1024 * 1024
_SHARED = ("metadata_sha256", "output_state", "files", "copied", "depends_on", "missing", "unknown", "state")
"""Fields that claim and receipt share."""

_LATER = {"missing", "unknown"}
_FIELDS = {"version", "source_metadata_sha256", "properties", *_SHARED}
"""Fields of a claim; older ones lack some of them."""

_OF_THE_RUN = ("run", "publication", "receipt_sha256")
"""Parts of a receipt that belong to the attempt that left the copy."""


@dataclass(slots=True)
class Noted:
    """``by_cdr``: a claim or receipt shows that cdr wrote it. ``properties`` of the publication, ``None`` without a
    claim.
    """

    by_cdr: bool = False
    properties: Mapping[str, str] | None = None
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_published(target: Checkpoint, source_sha256: str, claims: Claims | None) -> Noted:
    """Compare the checkpoint with its claim and its receipt: the one that was given, else the one beside it."""
    noted = Noted()
    beside = _beside(target, noted)
    if claims is not None and not noted.by_cdr:
        noted.notes.append(f"{RECEIPT_FILE} beside the output is gone")
    claim = _claim(target, noted)
    if claims is not None and beside is not None and _lasting(claims) != _lasting(beside):
        noted.differences.append(Difference(Kind.RECEIPT, f"{RECEIPT_FILE} beside the output is another receipt"))
    receipt = claims if claims is not None else beside
    noted.by_cdr = noted.by_cdr or receipt is not None or claim is not None
    stated = None if receipt is None else receipt.receipt.get("checkpoint")
    if receipt is not None:
        noted.differences += readable(_check_receipt(target, stated, claim), "checkpoint")
        noted.differences += readable(check_copy(join(target.directory, LEDGER_FILE), receipt), "ledger")
    if claim is not None:
        noted.properties = claim["properties"]
        noted.differences += readable(_check_claim(target, source_sha256, claim, receipt), "claim")
        if receipt is not None:
            publication = Publication("/_metadata", claim["properties"], (), whole=False)
            found = compare_publication(receipt, receipt.publications[-1], publication)
            noted.differences += readable(found, "publication")
    if isinstance(stated, Mapping) or claim is not None:
        listed = stated if isinstance(stated, Mapping) else claim or {}
        noted.differences += readable(_check_files(target, listed, noted), "files")
    return noted


def _beside(target: Checkpoint, noted: Noted) -> Claims | None:
    address = join(target.directory, RECEIPT_FILE)
    storage = storage_for(address)
    if not storage.exists(address):
        return None
    noted.by_cdr = True
    try:
        found = read_claims(storage.read(address), address, target.directory)
    except CdrError as error:
        noted.differences.append(Difference(Kind.RECEIPT, error.what))
        return None
    noted.differences += check_seal(found, f"{RECEIPT_FILE} beside the output")
    return found


def _lasting(claims: Claims) -> dict[str, Any]:
    return {name: value for name, value in claims.receipt.items() if name not in _OF_THE_RUN}


def _claim(target: Checkpoint, noted: Noted) -> Mapping[str, Any] | None:
    """Return the claim of this ``_metadata``; if there are only claims of others, that is a difference."""
    address = join(target.directory, CLAIMS, f"{target.sha256}.json")
    storage = storage_for(address)
    if not storage.exists(address):
        if any(uri.endswith(".json") for uri in storage.list(join(target.directory, CLAIMS))):
            noted.by_cdr = True
            what = "_metadata is not the one that was published: no claim has its SHA-256"
            noted.differences.append(Difference(Kind.CHANGED, what))
        return None
    noted.by_cdr = True
    try:
        data = storage.read(address)
        found = json.loads(data)
        if not _FIELDS - _LATER <= found.keys() <= _FIELDS or json.dumps(found, indent=1).encode() != data:
            noted.differences.append(Difference(Kind.RECEIPT, f"{address} was edited: it is not as it was written"))
        found["properties"] = {str(name): str(value) for name, value in found["properties"].items()}
        return dict(found)
    except (ValueError, KeyError, TypeError, AttributeError):
        noted.differences.append(Difference(Kind.RECEIPT, f"{address} is no claim of a publication: it was changed"))
        return None


def _check_receipt(
    target: Checkpoint, stated: Mapping[str, Any] | None, claim: Mapping[str, Any] | None
) -> Iterator[Difference]:
    if stated is None:
        yield Difference(Kind.RECEIPT, "the receipt is not about a checkpoint")
        return
    if stated["metadata_sha256"] != target.sha256:
        yield Difference(Kind.CHANGED, "_metadata is not the one that was published: its SHA-256 is not the receipt's")
    if claim is None:
        yield Difference(Kind.RECEIPT, "nothing beside the output shows that it was published: its claim is missing")
        return
    for name in _SHARED:
        if stated.get(name, []) != claim.get(name, []):
            yield Difference(Kind.RECEIPT, f"receipt and claim of the output have not the same {name}")


def _check_claim(
    target: Checkpoint, source_sha256: str, claim: Mapping[str, Any], receipt: Claims | None
) -> Iterator[Difference]:
    """Compare the claim with itself, the source, ``_metadata`` and the receipt."""
    expected = {"version": CLAIM_VERSION, "metadata_sha256": target.sha256, "source_metadata_sha256": source_sha256}
    for name, value in expected.items():
        if claim.get(name) != value:
            yield Difference(Kind.RECEIPT, f"the output's claim has {name} {claim.get(name)}, not {value}")
    outputs = any(operator.outputs for operator in target.metadata.operators)
    if claim["output_state"] not in ("keep", "downstream") or (outputs and claim["output_state"] == "downstream"):
        yield Difference(Kind.RECEIPT, f"the output's claim has output_state {claim['output_state']!r}")
    properties = claim["properties"]
    if properties.get("cdr.commit-user") != f"cdr-{properties.get('cdr.recovery')}":
        yield Difference(Kind.RECEIPT, "the output's claim has a foreign commit user")
    if receipt is not None and properties.get("cdr.proof-sha256") != receipt.receipt["proof_sha256"]:
        yield Difference(Kind.RECEIPT, "the output was published with another proof than the receipt's")
    if sorted(claim["depends_on"]) != sorted(state_files(target.metadata)):
        yield Difference(Kind.RECEIPT, "the output's claim does not list the files outside that it depends on")


def _check_files(target: Checkpoint, listed: Mapping[str, Any], noted: Noted) -> Iterator[Difference]:
    """Size and CRC-32C of every file, and that ``_metadata`` needs no other."""
    unsummed = 0
    for file in (*listed["files"], *listed["copied"]):
        try:
            data = target.data(Stream(path=str(file["path"]), relative=True))
        except CdrError as error:
            yield Difference(Kind.MISSING, error.what)
            continue
        if len(data) != file["bytes"]:
            yield Difference(
                Kind.CHANGED, f"{file['path']} has {len(data)} bytes, it was published with {file['bytes']}"
            )
        elif "crc32c" not in file:
            unsummed += 1
        elif _crc32c(data) != file["crc32c"]:
            yield Difference(Kind.CHANGED, f"{file['path']} was changed after it was published: its CRC-32C is another")
    if unsummed:
        noted.notes.append(f"{unsummed} copied files were published without a sum of their bytes")
    known = {str(file["path"]) for file in (*listed["files"], *listed["copied"])}
    for path in sorted(relative_files(target.metadata) ^ known):
        yield Difference(Kind.CHANGED, f"{path} is needed by _metadata or was published with it, and not both")


def _crc32c(data: Any) -> int:
    found = 0
    for at in range(0, len(data), _PIECE):
        found = google_crc32c.extend(found, data[at : at + _PIECE])
    return found
