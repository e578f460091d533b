"""Claims of a receipt, compared with each other and with the bytes that were read."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cdr_core.errors import Refused, Unreadable
from cdr_core.verify.checkpoint import Channel
from cdr_core.verify.report import Difference, Kind, Totals

VERSIONS = (1, 2)
"""Version 1 lists every line of every ledger; version 2 has their digests, and the lines in a file."""

SEAL = "receipt_sha256"
"""Field of a receipt: the SHA-256 of everything else in it."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """A channel's elements from ``from_pos`` on, at byte ``offset``; ``records`` is ``None`` where their number is
    unknown.
    """

    from_pos: int
    offset: int
    records: int | None


@dataclass(frozen=True, slots=True)
class Claims:
    """A receipt as given; ``beside`` is the directory that it was read from, empty if it was not read from a file."""

    receipt: Mapping[str, Any]
    beside: str = ""

    @property
    def version(self) -> int:
        return int(self.receipt["version"])

    @property
    def recovery(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.receipt["recovery"]
        return found

    @property
    def proof(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.receipt["proof"]
        return found

    @property
    def quarantine(self) -> dict[Channel, Quarantine]:
        """Return the quarantined part of each channel that has one."""
        entries = reversed(self.proof.get("quarantine", ()))
        return {_channel(e): Quarantine(int(e["from_pos"]), int(e["offset"]), e.get("records")) for e in entries}

    @property
    def dropped(self) -> dict[Channel, set[int]]:
        """Return, by channel, the positions of records that the user asked to leave out."""
        found: dict[Channel, set[int]] = {}
        for entry in self.proof.get("dropped_by_request", ()):
            found.setdefault(_channel(entry), set()).add(int(entry["pos"]))
        return found

    @property
    def publications(self) -> list[Mapping[str, Any]]:
        """Return all publications; most recoveries have one."""
        found = self.receipt.get("publications") or [self.receipt.get("publication") or {}]
        return list(found)

    @property
    def sealed(self) -> bool:
        """Return whether the receipt should carry its own SHA-256: every receipt that lists published files with sums
        does.
        """
        copied: Sequence[Mapping[str, Any]] = (self.receipt.get("checkpoint") or {}).get("copied") or ({},)
        return SEAL in self.receipt or "files" in self.publications[0] or all("crc32c" in file for file in copied)

    @property
    def epochs(self) -> set[str]:
        """Return the epochs of all attempts, in the form in which publications write them."""
        return {str(attempt.get("epoch")) for attempt in (self.receipt.get("run") or {}).get("attempts") or ()}

    @property
    def partial(self) -> bool:
        return bool(self.proof.get("quarantine") or self.proof.get("dropped_by_request"))


def read_claims(data: bytes, name: str, beside: str = "") -> Claims:
    """Return the claims of a receipt's JSON; other bytes raise ``Unreadable``. ``beside``: the directory it was read
    from.
    """
    try:
        receipt = json.loads(data)
        claims = Claims(receipt, beside)
        version = receipt["version"]
        _ = claims.recovery["source"], claims.recovery["target"], claims.proof["ledgers"], receipt["proof_sha256"]
        _ = claims.quarantine, claims.dropped
        if version == 2:
            _ = receipt["ledger"]["uri"], receipt["ledger"]["bytes"], receipt["ledger"]["sha256"]
        _ = claims.recovery["id"], claims.publications[0].get("commit_id"), claims.epochs, claims.sealed
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise Unreadable(f"{name} is no receipt", hint="give the path of a receipt or the id of a recovery") from None
    if version not in VERSIONS:
        raise Refused(f"{name} has version {version}, this cdr reads 1 and 2", hint="use the cdr that wrote it")
    if receipt.get("redacted"):
        hint = "take the receipt by cdr receipt, or give the id of the recovery"
        raise Refused(f"secrets were hidden in {name} when it was downloaded, so it proves nothing", hint=hint)
    return claims


def check_claims(claims: Claims, metadata_sha256: str, properties: Mapping[str, str] | None) -> Iterator[Difference]:
    """Compare the receipt with itself, the source's ``_metadata`` and what was stored with the publication.

    ``properties`` is ``None`` where the output no longer has the publication's properties.
    """
    yield from check_seal(claims, "the receipt")
    stated, actual = claims.receipt["proof_sha256"], _sha256(claims.proof)
    if stated != actual:
        yield Difference(Kind.RECEIPT, "the receipt was edited: its proof does not have the SHA-256 that it states")
    published = actual if properties is None else properties.get("cdr.proof-sha256")
    if published not in (stated, actual):
        yield Difference(Kind.RECEIPT, "the receipt was edited: the output was published with another proof")
    elif published != actual:
        yield Difference(Kind.RECEIPT, "the receipt's proof is not the one that the output was published with")
    if claims.proof.get("source_metadata_sha256") != metadata_sha256:
        yield Difference(Kind.RECEIPT, "the source is not the checkpoint that the receipt is about, or it was changed")


def check_seal(claims: Claims, name: str) -> Iterator[Difference]:
    """Compare the receipt's bytes with its own SHA-256."""
    rest = {name: value for name, value in claims.receipt.items() if name != SEAL}
    if claims.sealed and claims.receipt.get(SEAL) != _sha256(rest):
        yield Difference(Kind.RECEIPT, f"{name} was edited: it does not have the SHA-256 of its {SEAL}")


def _sha256(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def readable(found: Iterator[Difference], part: str) -> list[Difference]:
    """Return the differences, or a single one if this part of the receipt cannot be read."""
    try:
        return list(found)
    except (KeyError, TypeError, ValueError, AttributeError):
        return [Difference(Kind.RECEIPT, f"the receipt was edited: its {part} cannot be read")]


def check_sums(claims: Claims) -> Iterator[Difference]:
    """Compare the fingerprints at the receipt's head with the sums of the proof's first and last ledger."""
    for side, phase in (("source", "read"), ("published", "commit")):
        ledger = claims.proof["ledgers"].get(phase, ())
        parts = [str(each["fingerprint"]) for each in (ledger if claims.version == 1 else ledger["exchanges"])]
        words = [sum(int(part[at : at + 16], 16) for part in parts) % (1 << 64) for at in (0, 16)]
        stated, actual = claims.receipt["fingerprint"].get(side), "".join(f"{word:016x}" for word in words)
        if stated != actual:
            what = f"the receipt's fingerprint of the {side} records is {stated}, its proof comes to {actual}"
            yield Difference(Kind.RECEIPT, what)


def check_elements(claims: Claims, others: Mapping[str, int], in_table: bool) -> Iterator[Difference]:
    """Compare the counts of other elements: each one of the source is kept, merged or dropped; a table drops all."""
    there = Counter(others)
    outcomes = claims.receipt.get("other_elements") or {}
    accounted: Counter[str] = Counter()
    for outcome in ("kept", "merged", "dropped"):
        accounted.update(outcomes.get(outcome) or {})
    if +accounted != +there:
        what = f"the receipt accounts for {kinds(accounted)}, the source has {kinds(there)}"
        yield Difference(Kind.RECEIPT, what)
    dropped = Counter(claims.receipt["dropped_by_rule"]["elements"])
    expected = there if in_table else Counter(outcomes.get("dropped") or {})
    if +dropped != +expected:
        what = f"the receipt states that {kinds(dropped)} were dropped by rule, there are {kinds(expected)} to be"
        yield Difference(Kind.RECEIPT, what)


def kinds(counts: Mapping[str, int]) -> str:
    """Return the counts of other elements as text."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()) if count) or "no other elements"


def check_totals(claims: Claims, source: Totals, output: Totals, verdict: str) -> Iterator[Difference]:
    """Compare the totals at the receipt's head."""
    for what in ("records", "bytes"):
        for side, key, totals in (("source", "source", source), ("output", "published", output)):
            stated = claims.receipt.get(what, {}).get(key)
            actual = getattr(totals, what)
            if stated != actual:
                sentence = f"the receipt states {stated} {what} in the {side}, there are {actual}"
                yield Difference(Kind.RECEIPT, sentence)
    if claims.receipt.get("verdict") != verdict:
        yield Difference(Kind.RECEIPT, f"the receipt has {claims.receipt.get('verdict')!r}, the bytes show {verdict!r}")


def _channel(entry: Mapping[str, Any]) -> Channel:
    return Channel(str(entry["exchange"]), int(entry["up"]), int(entry["down"]))
