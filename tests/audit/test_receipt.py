"""Receipts: the published schema fits real ones, and verify believes nothing of them without looking."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cdr_core.audit.independent.checkpoint import Channel, Checkpoint
from cdr_core.audit.independent.claims import Claims, check_seal, read_claims
from cdr_core.audit.independent.digests import expected_raw
from cdr_core.audit.independent.report import Kind, Report
from cdr_core.audit.independent.spec import read_spec
from cdr_core.audit.receipt import (
    DroppedRecord,
    LeftOut,
    Quarantined,
    make_proof,
    make_receipt,
    proof_sha256,
    redacted,
    sealed,
)
from cdr_core.errors import Corrupt, Refused, Unreadable
from tests.audit.recovered import SCHEMA, Recovered, spoil_tag, validate
from tests.support.checkpoints import FixtureCheckpoints

Receipt = dict[str, Any]


def deep_copy(receipt: Receipt) -> Receipt:
    copy: Receipt = json.loads(json.dumps(receipt))
    return copy


def signed(receipt: Receipt) -> Receipt:
    """With the SHA-256 that fits its proof again, and the one that fits all of it."""
    return sealed({**receipt, "proof_sha256": proof_sha256(receipt["proof"])})


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_a_real_receipt_fits_the_schema_and_carries_its_version_and_spec(recovered: Recovered) -> None:
    validate(recovered.receipt)
    assert recovered.receipt["version"] == 1
    assert recovered.receipt["recovery"]["spec"] == Path(recovered.spec).read_text()


def test_a_real_receipt_tells_times_age_checkpoints_and_versions(recovered: Recovered) -> None:
    run = recovered.receipt["run"]
    assert run["rto_s"] >= sum(run["seconds"].values()) > 0
    assert run["rpo_s"] > 0, "the checkpoint was there before anybody asked for it"
    assert [each["state"] for each in run["checkpoints"]][-1:] == ["COMPLETED"]
    assert run["versions"]["python"].startswith("3.")
    assert set(run["dependencies"]) >= {"numba", "pyarrow"}
    assert "unknown" not in run["dependencies"].values()


def test_a_receipt_with_everything_fits_the_schema(recovered: Recovered) -> None:
    left_out = LeftOut(
        (Quarantined("main", 0, 1, 5, 77, 1000, "an unknown tag"), Quarantined("main", 0, 0, 0, 0, 9, "cut", 3)),
        (DroppedRecord("main", 2, 2, 4),),
    )
    proof = make_proof(
        "0" * 64, "1" * 64, {phase: [] for phase in ("read", "filter", "spill", "drain", "commit")}, left_out
    )
    run = recovered.receipt["run"] | {
        "checkpoints": [{"id": 1, "state": "COMPLETED", "records": 3, "bytes": 9, "seconds": 0.5}],
        "fetched_bytes": 7,
        "rto_s": 12.5,
        "rpo_s": 60.0,
        "versions": {"python": "3.11", "metadata": 6},
        "dependencies": {"pyarrow": "26.0.1"},
    }
    receipt = make_receipt(recovered.receipt["recovery"], proof, [], [], recovered.receipt["publication"], run)
    assert receipt["verdict"] == "partial"
    assert [entry["down"] for entry in receipt["proof"]["quarantine"]] == [0, 1]
    validate(receipt)


@pytest.mark.parametrize("missing", SCHEMA["required"])
def test_the_schema_misses_what_is_missing(recovered: Recovered, missing: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validate({name: value for name, value in recovered.receipt.items() if name != missing})


def change(path: str, value: Any) -> Callable[[Receipt], None]:
    def apply(receipt: Receipt) -> None:
        *parents, last = path.split(".")
        at: Any = receipt
        for name in parents:
            at = at[int(name) if isinstance(at, list) else name]
        at[int(last) if isinstance(at, list) else last] = value(at[last]) if callable(value) else value

    return apply


EDITS = {
    "a ledger": (change("proof.ledgers.commit.0.records", lambda n: n + 1), "its proof does not have the SHA-256"),
    "the plan": (change("proof.plan_sha256", "0" * 64), "its proof does not have the SHA-256"),
    "the verdict": (change("verdict", "partial"), "the receipt says 'partial'"),
    "the records of the source": (change("records.source", lambda n: n + 1), "records in the source"),
    "the bytes of the output": (change("bytes.published", lambda n: n - 1), "bytes in the output"),
    "the parallelism": (change("recovery.parallelism", "3"), "given to a subtask that does not own"),
    "a fingerprint": (change("fingerprint.published", "0" * 32), "fingerprint of the published records"),
    "what was dropped": (change("dropped_by_rule.elements", {"watermark": 1}), "were dropped by rule"),
    "what was merged": (change("other_elements.merged", {"watermark": 1}), "the receipt accounts for"),
    "the publication's number": (change("publication.commit_id", 77), "which the output does not have"),
    "its records": (change("publication.records", 1), "the receipt says 1"),
    "its watermark": (change("publication.watermark", 1), "cdr.watermark"),
    "its place": (change("publication.location", "/elsewhere/_cdr/manifest-9.json"), "manifest-1.json"),
    "its files": (change("publication.files.0.crc32c", 1), "was changed after it was published"),
    "the recovery": (change("recovery.source", "/elsewhere"), "cdr.source-checkpoint"),
}
"""Each is found by what it contradicts, even with a SHA-256 that fits it."""


@pytest.mark.parametrize("case", EDITS)
def test_an_edited_receipt_is_said_to_be_edited(recovered: Recovered, case: str) -> None:
    edit, sentence = EDITS[case]
    receipt = deep_copy(recovered.receipt)
    edit(receipt)
    edited = replace(recovered, receipt=sealed(receipt))
    report = edited.verify(with_receipt=True, parallelism=receipt["recovery"]["parallelism"])
    assert report.exit_code == 2
    assert any(sentence in found.what for found in report.differences)


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """Paths of all values that hold no others."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not inner:
        yield path
    for name, each in inner:
        yield from leaves(each, f"{path}.{name}" if path else str(name))


def test_no_value_of_a_receipt_can_be_changed_or_left_out_without_a_word(recovered: Recovered) -> None:
    """Also what can be compared with nothing, such as the times of a run."""
    paths = list(leaves(recovered.receipt["run"], "run")) + list(
        leaves(recovered.receipt["publication"], "publication")
    )
    for path in ["verdict", "recovery.spec", "receipt_sha256", "fingerprint.source", *paths]:
        receipt = deep_copy(recovered.receipt)
        change(path, "another")(receipt)
        assert list(check_seal(Claims(receipt), "it")), path
    for name in recovered.receipt:
        receipt = deep_copy(recovered.receipt)
        del receipt[name]
        assert list(check_seal(Claims(receipt), "it")), name


def test_a_receipt_of_an_older_cdr_has_no_sum_and_that_is_said(recovered: Recovered) -> None:
    receipt = deep_copy(recovered.receipt)
    del receipt["receipt_sha256"], receipt["publication"]["files"]
    report = replace(recovered, receipt=receipt).verify(with_receipt=True, parallelism="2")
    assert report.verdict == "balanced"
    assert any("no SHA-256 of its own" in line for line in report.unchecked)


def test_a_receipt_that_was_edited_and_signed_again_is_not_the_one_that_was_published(recovered: Recovered) -> None:
    receipt = deep_copy(recovered.receipt)
    change("proof.ledgers.read.0.bytes", 1)(receipt)
    report = replace(recovered, receipt=signed(receipt)).verify(with_receipt=True, parallelism="2")
    found = {difference.what for difference in report.differences}
    assert any("published with another proof" in what for what in found)
    assert any("the receipt's ledger has" in what and "of 1 bytes" in what for what in found)


def test_a_receipt_of_another_checkpoint_is_said(recovered: Recovered, fixture_checkpoint: FixtureCheckpoints) -> None:
    other = str(fixture_checkpoint("a_p3_thr0", 1).path)
    report = recovered.verify(with_receipt=True, source=other, parallelism="2")
    assert any("not the checkpoint that the receipt is about" in found.what for found in report.differences)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"nonsense", b'{"version": 1, "recovery": {}}', b"\xff\xfe"])
def test_what_is_no_receipt_is_unreadable(data: bytes) -> None:
    with pytest.raises(Unreadable, match="is no receipt"):
        read_claims(data, "that")


def test_a_receipt_of_a_later_version_is_refused(recovered: Recovered) -> None:
    with pytest.raises(Refused, match="has version 2"):
        read_claims(json.dumps({**recovered.receipt, "version": 2}).encode(), "that")


@dataclass(frozen=True)
class Damaged:
    """A recovery that left out the end of one channel, from element ``first`` on, because its source is damaged."""

    recovered: Recovered
    source: Path
    channel: Channel
    first: int

    def verify(self) -> Report:
        return self.recovered.verify(with_receipt=True, source=str(self.source), parallelism="2")

    def edit(self, edit: Callable[[Receipt], None]) -> Damaged:
        """Another receipt, signed and published as such."""
        receipt = deep_copy(self.recovered.receipt)
        edit(receipt)
        receipt = signed(receipt)
        edited = replace(self.recovered, receipt=receipt)
        edited.publish(receipt["proof_sha256"])
        return replace(self, recovered=edited)


@pytest.fixture
def damaged(recovered: Recovered, tmp_path: Path) -> Damaged:
    channel, first = Channel("main", 1, 2), 30
    with Checkpoint(recovered.source) as checkpoint:
        (exchange,) = read_spec(recovered.spec)
        elements = checkpoint.elements(exchange, channel).whole()
    assert elements.data[elements.starts[first]] <= 1, "a record is damaged, not a watermark"
    source = tmp_path / "chk-2"
    shutil.copytree(recovered.source, source)
    spoil_tag(source, elements.data[elements.starts[first] : elements.ends[first]])
    ours = recovered.copy(tmp_path / "out")
    for number in range(len(ours.files)):
        ours.rewrite(number, lambda rows: keep(rows, lambda row: not (place(row) == channel and row["pos"] >= first)))
    sound = expected_raw(elements.before(first))
    lost = expected_raw(elements)
    fewer, smaller = len(lost.positions) - len(sound.positions), lost.bytes - sound.bytes

    def edit(receipt: Receipt) -> None:
        (line,) = [each for each in receipt["proof"]["ledgers"]["read"] if place(each) == channel]
        line |= {"records": len(sound.positions), "bytes": sound.bytes, "others": dict(sound.others)}
        begin = elements.ends[first - 1]
        entry = Quarantined("main", 1, 2, first, begin, len(elements.data) - begin, "an unknown tag")
        receipt["proof"] |= LeftOut((entry,)).to_json()
        receipt["verdict"] = "partial"
        less = Counter(lost.others) - Counter(sound.others)
        for counts in (receipt["dropped_by_rule"]["elements"], receipt["other_elements"]["merged"]):
            counts |= Counter(counts) - less
        for what, difference in (("records", fewer), ("bytes", smaller)):
            receipt[what] = {side: number - difference for side, number in receipt[what].items()}

    return Damaged(ours, source, channel, first).edit(edit)


def place(row: Mapping[str, Any]) -> Channel:
    return Channel(row["exchange"], row["up"], row["down"])


def keep(rows: list[Any], wanted: Callable[[Any], bool]) -> None:
    rows[:] = [row for row in rows if wanted(row)]


def test_exactly_what_is_in_quarantine_may_be_missing(damaged: Damaged) -> None:
    report = damaged.verify()
    assert report.differences == ()
    assert (report.verdict, report.exit_code) == ("partial", 6)
    validate(damaged.recovered.receipt)


def test_a_damaged_channel_that_is_not_in_quarantine_is_unreadable(damaged: Damaged) -> None:
    without = damaged.edit(lambda receipt: receipt["proof"].pop("quarantine"))
    with pytest.raises(Corrupt, match=r"unknown tag 85 .*exchange main, operator slow, subtask 2, gate 0, channel 1"):
        without.verify()


def test_a_record_in_front_of_the_quarantine_may_not_be_missing(damaged: Damaged) -> None:
    def one_less(rows: list[Any]) -> None:
        keep(rows, lambda row: not (place(row) == damaged.channel and row["pos"] == damaged.first - 1))

    for number in range(len(damaged.recovered.files)):
        damaged.recovered.rewrite(number, one_less)
    found = damaged.verify().differences
    assert (Kind.MISSING, damaged.channel, 1) in [(each.kind, each.channel, each.count) for each in found]


def test_a_record_that_is_in_quarantine_may_not_be_in_the_output(damaged: Damaged) -> None:
    later = damaged.edit(change("proof.quarantine.0.from_pos", damaged.first - 1))
    found = [(each.kind, each.channel) for each in later.verify().differences]
    assert (Kind.EXTRA, damaged.channel) in found


def test_a_quarantine_begins_where_its_first_element_does(damaged: Damaged) -> None:
    report = damaged.edit(change("proof.quarantine.0.offset", lambda at: at + 1)).verify()
    (said,) = [found.what for found in report.differences if found.channel == damaged.channel]
    assert "the receipt says that quarantine begins at byte" in said


def test_a_healthy_channel_in_quarantine_is_partial_and_noted(damaged: Damaged) -> None:
    report = replace(damaged, source=Path(damaged.recovered.source)).verify()
    assert report.verdict == "partial"
    assert report.left_out > 0
    assert any("frames into records to its end" in line for line in report.unchecked)


def test_a_receipt_in_which_secrets_were_hidden_is_refused(recovered: Recovered) -> None:
    with pytest.raises(Refused, match="secrets were hidden in the receipt"):
        read_claims(json.dumps(redacted(recovered.receipt)).encode(), "the receipt")


def test_a_record_that_the_user_asked_to_drop_may_be_missing_and_no_other(recovered: Recovered, tmp_path: Path) -> None:
    ours = Damaged(recovered.copy(tmp_path / "out"), Path(recovered.source), Channel("main", 0, 1), 0)
    dropped: list[Any] = []

    def take_first(rows: list[Any]) -> None:
        dropped.append(next(row for row in rows if place(row) == ours.channel))
        rows.remove(dropped[0])

    ours.recovered.rewrite(1, take_first)

    def edit(receipt: Receipt) -> None:
        row = dropped[0]
        (line,) = [each for each in receipt["proof"]["ledgers"]["read"] if place(each) == ours.channel]
        line |= {"records": line["records"] - 1, "bytes": line["bytes"] - len(row["raw"])}
        receipt["proof"] |= LeftOut((), (DroppedRecord("main", 0, 1, row["pos"]),)).to_json()
        receipt["verdict"] = "partial"
        for what, difference in (("records", 1), ("bytes", len(row["raw"]))):
            receipt[what] = {side: number - difference for side, number in receipt[what].items()}

    assert ours.verify().verdict == "unbalanced"
    report = ours.edit(edit).verify()
    assert report.differences == ()
    assert (report.verdict, report.left_out) == ("partial", 1)
