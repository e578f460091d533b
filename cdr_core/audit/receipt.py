"""Proof and receipt.

The proof is the plan and the ledgers from source to prepared output: deterministic, stored before anything is
published, its SHA-256 goes into the published snapshot. The receipt is written afterwards: proof, publication,
attempts, timings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from cdr_core.audit.ledger import Entry, total

RECEIPT_VERSION = 1


def make_proof(plan_sha256: str, metadata_sha256: str, ledgers: Mapping[str, Sequence[Entry]]) -> dict[str, Any]:
    """Plan and ledgers in a canonical order."""
    return {
        "version": RECEIPT_VERSION,
        "source_metadata_sha256": metadata_sha256,
        "plan_sha256": plan_sha256,
        "ledgers": {
            phase: [entry.to_json() for entry in sorted(entries, key=lambda e: repr(e.key))]
            for phase, entries in ledgers.items()
        },
    }


def proof_sha256(proof: Mapping[str, Any]) -> str:
    """Identity of a proof."""
    return hashlib.sha256(json.dumps(proof, sort_keys=True).encode()).hexdigest()


def dropped(source: Sequence[Entry]) -> dict[str, int]:
    """Elements that are not records, by kind: a table holds records only."""
    counts: dict[str, int] = {}
    for entry in source:
        for kind, count in entry.others.items():
            counts[kind] = counts.get(kind, 0) + count
    return counts


def make_receipt(
    recovery: Mapping[str, Any],
    proof: Mapping[str, Any],
    source: Sequence[Entry],
    published: Sequence[Entry],
    publication: Mapping[str, Any],
    run: Mapping[str, Any],
) -> dict[str, Any]:
    """The receipt of a published recovery. The caller has compared the ledgers; the verdict says so."""
    before, after = total(source), total(published)
    return {
        "version": RECEIPT_VERSION,
        "verdict": "balanced" if before == after else "unbalanced",
        "recovery": dict(recovery),
        "records": {"source": before.records, "published": after.records},
        "bytes": {"source": before.bytes, "published": after.bytes},
        "fingerprint": {"source": before.to_json()["fingerprint"], "published": after.to_json()["fingerprint"]},
        "dropped_by_rule": {"rule": "a table holds records only", "elements": dropped(source)},
        "publication": dict(publication),
        "run": dict(run),
        "proof_sha256": proof_sha256(proof),
        "proof": dict(proof),
    }
