"""Receipts: the published schema fits real ones, and verify believes nothing of them without looking."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from cdr_core.audit.ledger import NOTHING
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
from cdr_core.verify.checkpoint import Channel, Checkpoint
from cdr_core.verify.claims import Claims, check_seal, read_claims
from cdr_core.verify.report import Kind, Report
from cdr_core.verify.spec import read_spec
from tests.audit.recovered import SCHEMA, Recovered, recover, spoil_tag, validate
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
    assert recovered.receipt["version"] == recovered.receipt["proof"]["version"] == 2
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
    proof = make_proof("0" * 64, "1" * 64, recovered.receipt["proof"]["ledgers"], left_out)
    run = recovered.receipt["run"] | {
        "checkpoints": [{"id": 1, "state": "COMPLETED", "records": 3, "bytes": 9, "seconds": 0.5}],
        "fetched_bytes": 7,
        "rto_s": 12.5,
        "rpo_s": 60.0,
        "versions": {"python": "3.11", "metadata": 6},
        "dependencies": {"pyarrow": "26.0.1"},
    }
    publication = recovered.receipt["publication"]
    receipt = make_receipt(recovered.receipt["recovery"], proof, NOTHING, NOTHING, publication, run)
    receipt = sealed({**receipt, "ledger": recovered.receipt["ledger"]})
    assert receipt["verdict"] == "partial"
    assert [entry["down"] for entry in receipt["proof"]["quarantine"]] == [0, 1]
    validate(receipt)


@pytest.mark.parametrize("missing", [*SCHEMA["required"], *SCHEMA["else"]["required"]])
def test_the_schema_misses_what_is_missing(recovered: Recovered, missing: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validate({name: value for name, value in recovered.receipt.items() if name != missing})


def change(path: str, value: Any) -> Callable[[Receipt], None]:
    def apply(receipt: Receipt) -> None:
        *parents, last = path.split(".")
        at: Any = receipt
        for name in parents:
            at = at[int(name) if isinstance(at, list) else name]
        place: Any = int(last) if isinstance(at, list) else last
        at[place] = value(at[place]) if callable(value) else value

    return apply


EDITS = {
    "a ledger": (change("proof.ledgers.commit.lines", lambda n: n + 1), "its proof does not have the SHA-256"),
    "a subtask's total": (change("proof.ledgers.commit.exchanges.0.subtasks.1.1", 7), "exchange main, new subtask 1"),
    "a digest": (change("proof.ledgers.read.digest", "0" * 64), "another digest than the source"),
    "the ledger file's sum": (change("ledger.sha256", "0" * 64), "not the ledger file"),
    "the plan": (change("proof.plan_sha256", "0" * 64), "its proof does not have the SHA-256"),
    "the verdict": (change("verdict", "partial"), "the receipt has 'partial'"),
    "the records of the source": (change("records.source", lambda n: n + 1), "records in the source"),
    "the bytes of the output": (change("bytes.published", lambda n: n - 1), "bytes in the output"),
    "the parallelism": (change("recovery.parallelism", "3"), "given to a subtask that does not own"),
    "a fingerprint": (change("fingerprint.published", "0" * 32), "fingerprint of the published records"),
    "what was dropped": (change("dropped_by_rule.elements", {"watermark": 1}), "were dropped by rule"),
    "what was merged": (change("other_elements.merged", {"watermark": 1}), "the receipt accounts for"),
    "the publication's number": (change("publication.commit_id", 77), "which the output does not have"),
    "its records": (change("publication.records", 1), "the receipt states 1"),
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
    change("proof.ledgers.read.exchanges.0.bytes", 1)(receipt)
    report = replace(recovered, receipt=signed(receipt)).verify(with_receipt=True, parallelism="2")
    found = {difference.what for difference in report.differences}
    assert any("published with another proof" in what for what in found)
    assert any("exchange main: the receipt's ledger of read has" in what and "of 1 bytes" in what for what in found)


def test_a_receipt_of_another_checkpoint_is_said(recovered: Recovered, fixture_checkpoint: FixtureCheckpoints) -> None:
    other = str(fixture_checkpoint("a_p3_thr0", 1).path)
    report = recovered.verify(with_receipt=True, source=other, parallelism="2")
    assert any("not the checkpoint that the receipt is about" in found.what for found in report.differences)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"nonsense", b'{"version": 1, "recovery": {}}', b"\xff\xfe"])
def test_what_is_no_receipt_is_unreadable(data: bytes) -> None:
    with pytest.raises(Unreadable, match="is no receipt"):
        read_claims(data, "that")


def test_a_receipt_of_a_later_version_is_refused(recovered: Recovered) -> None:
    with pytest.raises(Refused, match="has version 3"):
        read_claims(json.dumps({**recovered.receipt, "version": 3}).encode(), "that")


@dataclass(frozen=True)
class Damaged:
    """A recovery that left out the end of one channel, from element ``first`` on, because its source is damaged."""

    recovered: Recovered
    channel: Channel
    first: int

    def verify(self, source: str = "") -> Report:
        return self.recovered.verify(with_receipt=True, source=source, parallelism="2")

    def edit(self, edit: Callable[[Receipt], None]) -> Damaged:
        """Another receipt, signed and published as such."""
        receipt = deep_copy(self.recovered.receipt)
        edit(receipt)
        receipt = signed(receipt)
        edited = replace(self.recovered, receipt=receipt)
        edited.publish(receipt["proof_sha256"])
        return replace(self, recovered=edited)


@pytest.fixture(scope="module")
def quarantined(recovered: Recovered, tmp_path_factory: pytest.TempPathFactory) -> Damaged:
    channel, first, folder = Channel("main", 1, 2), 30, tmp_path_factory.mktemp("quarantined")
    with Checkpoint(recovered.source) as checkpoint:
        (exchange,) = read_spec(recovered.spec)
        elements = checkpoint.elements(exchange, channel).whole()
    assert elements.data[elements.starts[first]] <= 1, "a record is damaged, not a watermark"
    source = folder / "chk-2"
    shutil.copytree(recovered.source, source)
    spoil_tag(source, elements.data[elements.starts[first] : elements.ends[first]])
    return Damaged(recover(str(source), recovered.spec, "2", folder, on_corrupt="quarantine"), channel, first)


@pytest.fixture
def damaged(quarantined: Damaged, tmp_path: Path) -> Damaged:
    return replace(quarantined, recovered=quarantined.recovered.copy(tmp_path / "out"))


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
    assert "the receipt states that quarantine begins at byte" in said


def test_a_healthy_channel_in_quarantine_is_partial_and_noted(recovered: Recovered, damaged: Damaged) -> None:
    report = damaged.verify(source=recovered.source)
    assert report.verdict == "partial"
    assert report.left_out > 0
    assert any("frames into records to its end" in line for line in report.unchecked)


def test_a_receipt_in_which_secrets_were_hidden_is_refused(recovered: Recovered) -> None:
    with pytest.raises(Refused, match="secrets were hidden in the receipt"):
        read_claims(json.dumps(redacted(recovered.receipt)).encode(), "the receipt")


def test_a_record_that_the_user_asked_to_drop_may_be_missing_and_no_other(recovered: Recovered, tmp_path: Path) -> None:
    ours = recover(recovered.source, recovered.spec, "2", tmp_path, drop_records=("main:0:0:2",))
    report = ours.verify(with_receipt=True, parallelism="2")
    assert report.differences == ()
    assert (report.verdict, report.left_out) == ("partial", 1)
    receipt = deep_copy(ours.receipt)
    change("proof.dropped_by_request.0.pos", 5)(receipt)
    report = replace(ours, receipt=signed(receipt)).verify(with_receipt=True, parallelism="2")
    kinds = {each.kind for each in report.differences if each.channel == Channel("main", 0, 0)}
    assert kinds == {Kind.MISSING, Kind.EXTRA, Kind.RECEIPT}
