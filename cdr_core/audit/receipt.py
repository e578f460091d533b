"""Proof and receipt.

The proof is the plan and the digests and totals of the ledgers from source to prepared output: deterministic, stored
before anything is published, its SHA-256 goes into the published snapshot. The ledgers themselves are a file. The
receipt is written afterwards: proof, publication, attempts, timings. ``docs/receipt.schema.json`` describes both;
fields are only ever added to a version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

from cdr_core.audit.ledger import Ledger

RECEIPT_VERSION = 2
"""Version 1 listed every line of every ledger."""

SEAL = "receipt_sha256"
"""Field of a receipt: the SHA-256 of everything else in it, so that a changed byte is noticed."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The end of a virtual channel, from element ``from_pos`` on, that was left out because it cannot be read.

    ``offset`` is where in the channel's bytes it begins, ``bytes`` how long it is, ``records`` how many it holds, if
    they can be counted.
    """

    exchange: str
    up: int
    down: int
    from_pos: int
    offset: int
    bytes: int
    reason: str
    records: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class DroppedRecord:
    """A record that the user asked to leave out."""

    exchange: str
    up: int
    down: int
    pos: int


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Records of the source that are deliberately not in the output."""

    quarantine: tuple[Quarantined, ...] = ()
    dropped: tuple[DroppedRecord, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return only the non-empty parts, so that a proof without them keeps its bytes."""
        found: dict[str, Any] = {}
        order = attrgetter("exchange", "up", "down")
        if self.quarantine:
            found["quarantine"] = [asdict(entry) for entry in sorted(self.quarantine, key=order)]
        if self.dropped:
            found["dropped_by_request"] = [asdict(entry) for entry in sorted(self.dropped)]
        return found


NOTHING_LEFT_OUT = LeftOut()


def make_proof(
    plan_sha256: str,
    metadata_sha256: str,
    ledgers: Mapping[str, Mapping[str, Any]],
    left_out: LeftOut = NOTHING_LEFT_OUT,
) -> dict[str, Any]:
    """Return the proof: plan and ledgers, each by its digest and totals, and the final list of left-out records."""
    return {
        "version": RECEIPT_VERSION,
        "source_metadata_sha256": metadata_sha256,
        "plan_sha256": plan_sha256,
        "ledgers": {phase: dict(described) for phase, described in ledgers.items()},
        **left_out.to_json(),
    }


def proof_sha256(proof: Mapping[str, Any]) -> str:
    """Return the SHA-256 that identifies a proof."""
    return hashlib.sha256(json.dumps(proof, sort_keys=True).encode()).hexdigest()


def sealed(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """Return a receipt that nothing is added to any more, with the SHA-256 of all of it."""
    rest = {name: value for name, value in receipt.items() if name != SEAL}
    return {**rest, SEAL: proof_sha256(rest)}


def redacted(receipt: Mapping[str, Any]) -> dict[str, Any]:
    """Return a receipt in which texts were replaced to hide secrets, marked as such: it proves nothing any more."""
    return {**{name: value for name, value in receipt.items() if name != SEAL}, "redacted": True}


def _verdict(proof: Mapping[str, Any], equal: bool) -> str:
    if not equal:
        return "unbalanced"
    return "partial" if proof.get("quarantine") or proof.get("dropped_by_request") else "balanced"


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether the key, or the types, of an exchange are proven, and why. ``source`` is where they come from."""

    proven: bool
    reason: str
    source: str = "by hand"

    def to_json(self) -> dict[str, Any]:
        return {"from": self.source, "proven": self.proven, "reason": self.reason}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Finding:
        return cls(value["proven"], value["reason"], value["from"])


@dataclass(frozen=True, slots=True)
class ExchangeFindings:
    """How far an exchange's key and types are proven; ``None`` where it has none."""

    name: str
    key: Finding | None
    types: Finding | None

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "key": None if self.key is None else self.key.to_json(),
            "types": None if self.types is None else self.types.to_json(),
        }


def verdict_text(verdict: str, *, proven: bool, values_checked: bool = True) -> str:
    """Return the verdict for display, with a note if a key is not confirmed, or if values were not compared."""
    reservations = [*([] if proven else ["key: unproven"]), *([] if values_checked else ["values: not checked"])]
    return f"{verdict} ({', '.join(reservations)})" if reservations else verdict


def make_receipt(
    recovery: Mapping[str, Any],
    proof: Mapping[str, Any],
    source: Ledger,
    published: Ledger,
    publication: Mapping[str, Any],
    run: Mapping[str, Any],
    other_elements: Mapping[str, Mapping[str, int]] | None = None,
    findings: Sequence[ExchangeFindings] = (),
    proven: bool = False,
) -> dict[str, Any]:
    """Return the receipt of a published recovery, still to be :func:`sealed`. The caller has compared the ledgers.

    ``source`` is what had to be published: all records, without those that the proof lists as left out.
    ``other_elements`` counts, by outcome, elements that are not records on the way to the new channels. ``proven``: the
    checkpoint confirms every key by which records were routed.
    """
    before, after = source.total(), published.total()
    return {
        "version": proof["version"],
        "verdict": _verdict(proof, before == after),
        "proven": proven,
        "exchanges": [each.to_json() for each in findings],
        "recovery": dict(recovery),
        "records": {"source": before.records, "published": after.records},
        "bytes": {"source": before.bytes, "published": after.bytes},
        "fingerprint": {"source": before.to_json()["fingerprint"], "published": after.to_json()["fingerprint"]},
        "dropped_by_rule": {"rule": "a table holds records only", "elements": source.kinds()},
        "other_elements": {name: dict(counts) for name, counts in (other_elements or {}).items()},
        "publication": dict(publication),
        "run": dict(run),
        "proof_sha256": proof_sha256(proof),
        "proof": dict(proof),
    }
