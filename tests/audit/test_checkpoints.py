"""A rewritten checkpoint: no byte of it can change without a word, in flight or not, with a receipt or without."""

from __future__ import annotations

import json
import random
import shutil
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdr_core.errors import Corrupt
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.verify.checkpoint import Channel, Checkpoint
from cdr_core.verify.claims import read_claims
from cdr_core.verify.report import Difference, Kind, Report
from cdr_core.verify.rows import reading_of
from cdr_core.verify.spec import read_spec
from cdr_core.verify.verify import Request, verify
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.written import (
    MAX_PARALLELISM,
    SPEC,
    attributes,
    latency_marker,
    record,
    status,
    watermark,
    write_checkpoint,
)


@dataclass(frozen=True)
class Rewritten:
    """A checkpoint that was written from another."""

    source: str
    spec: str
    path: Path
    receipt: dict[str, Any] | None = None

    def copy(self, to: Path) -> Rewritten:
        return replace(self, path=Path(shutil.copytree(self.path, to)))

    def verify(self, *, with_receipt: bool = False) -> Report:
        claims = read_claims(json.dumps(self.receipt).encode(), "the receipt") if with_receipt else None
        return verify(Request(self.source, f"checkpoint:{self.path}", self.spec, "", claims))

    def found(self, **how: Any) -> list[Difference]:
        return list(self.verify(**how).differences)

    def foreign(self) -> Rewritten:
        """As if somebody else had written it."""
        shutil.rmtree(self.path / "_cdr")
        for name in ("cdr-receipt.json", "cdr-ledger.parquet"):
            (self.path / name).unlink()
        return replace(self, receipt=None)

    @property
    def claim(self) -> Path:
        (found,) = (self.path / "_cdr").iterdir()
        return found


def rewrite(source: str, spec: str, parallelism: str, to: Path, **options: Any) -> Rewritten:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CDR_HOME", str(to.with_name(f"{to.name}-home")))
        request = RecoveryRequest(source, spec, parallelism, f"checkpoint:{to}", **options)
        repository, recovery, settings = inline.start(request)
        inline.run_all(repository, recovery, settings)
        receipt = repository.receipt(recovery)
    assert receipt is not None
    return Rewritten(source, spec, to, dict(receipt))


@pytest.fixture(scope="session")
def shipped(fixture_checkpoint: FixtureCheckpoints) -> FixtureCheckpoint:
    return fixture_checkpoint("a_p3_thr0", 2)


@pytest.fixture(scope="session")
def rescaled(shipped: FixtureCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Rewritten:
    return rewrite(str(shipped.path), str(shipped.spec), "2", tmp_path_factory.mktemp("rescaled") / "chk")


@pytest.fixture(scope="session")
def same(shipped: FixtureCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Rewritten:
    return rewrite(str(shipped.path), str(shipped.spec), "same", tmp_path_factory.mktemp("same") / "chk")


@pytest.fixture
def copied(shipped: FixtureCheckpoint, tmp_path: Path) -> Rewritten:
    """A copy of the source: somebody else's, as far as anybody can tell."""
    return Rewritten(str(shipped.path), str(shipped.spec), shipped.copy(tmp_path / "chk"))


def require_never_balanced(target: Rewritten, rounds: int, **how: Any) -> None:
    """One bit, one byte too few or one twice, in every file in turn; the same places in every run."""
    assert target.verify(**how).verdict == "balanced"
    choice = random.Random(6)
    files = sorted(path for path in target.path.rglob("*") if path.is_file())
    for number in range(max(rounds, len(files))):
        path = files[number % len(files)]
        whole = path.read_bytes()
        at = choice.randrange(len(whole))
        bits = 1 << choice.randrange(8)
        ways = [whole[:at] + bytes([whole[at] ^ bits]) + whole[at + 1 :]] * 3
        ways += [whole[:at] + whole[at + 1 :], whole[:at] + whole[at : at + 1] + whole[at:]]
        damaged = choice.choice(ways)
        if path.suffix == ".json" and _same_json(whole, damaged):
            continue
        path.write_bytes(damaged)
        try:
            assert target.verify(**how).verdict == "unbalanced", (path.name, at, bits)
        except Corrupt:
            assert path.name == "_metadata", "the rest can be compared whatever is in it"
        path.write_bytes(whole)


def _same_json(one: bytes, two: bytes) -> bool:
    """Spaces between values say nothing."""
    try:
        return bool(json.loads(one) == json.loads(two))
    except ValueError:
        return False


def test_no_byte_of_a_copy_can_change_without_a_word(copied: Rewritten) -> None:
    require_never_balanced(copied, 20)


def test_no_byte_of_a_rescaled_checkpoint_can_change_without_a_word(rescaled: Rewritten, tmp_path: Path) -> None:
    require_never_balanced(rescaled.copy(tmp_path / "given"), 12, with_receipt=True)
    require_never_balanced(rescaled.copy(tmp_path / "beside"), 12)


def test_no_byte_of_a_checkpoint_of_the_same_parallelism_can_change_without_a_word(
    same: Rewritten, tmp_path: Path
) -> None:
    require_never_balanced(same.copy(tmp_path / "given"), 12, with_receipt=True)
    require_never_balanced(same.copy(tmp_path / "foreign").foreign(), 10)


def test_a_checkpoint_whose_claim_is_gone_or_says_something_else_is_said(rescaled: Rewritten, tmp_path: Path) -> None:
    ours = rescaled.copy(tmp_path / "chk")
    claim = json.loads(ours.claim.read_text())
    for edit in (
        {"metadata_sha256": "0" * 64},
        {"source_metadata_sha256": "0" * 64},
        {"output_state": "downstream"},
        {"files": claim["files"][1:]},
        {"depends_on": ["/elsewhere"]},
        {"properties": {**claim["properties"], "cdr.proof-sha256": "0" * 64}},
        {"properties": {**claim["properties"], "cdr.epoch": "77"}},
    ):
        ours.claim.write_text(json.dumps(claim | edit, indent=1))
        for with_receipt in (True, False):
            assert {each.kind for each in ours.found(with_receipt=with_receipt)} == {Kind.RECEIPT}
    whole = json.dumps(claim, indent=1)
    for changed in (whole.replace('"unknown"', '"unknowm"'), whole.replace("\n }", "\n  }"), whole + "\n"):
        ours.claim.write_text(changed)  # it says the same, and is not what was written
        for with_receipt in (True, False):
            assert any("is not as it was written" in each.what for each in ours.found(with_receipt=with_receipt))
    ours.claim.write_text(whole)
    assert not ours.found(with_receipt=True)
    ours.claim.unlink()
    assert any("its claim is missing" in each.what for each in ours.found(with_receipt=True))
    assert any("its claim is missing" in each.what for each in ours.found())


def test_a_metadata_that_was_put_in_the_place_of_the_published_one_is_said(rescaled: Rewritten, tmp_path: Path) -> None:
    ours = rescaled.copy(tmp_path / "chk")
    (ours.path / "cdr-receipt.json").unlink()
    metadata = ours.path / "_metadata"
    metadata.write_bytes(metadata.read_bytes()[:-1] + b"\0")
    assert any("no claim has its SHA-256" in each.what for each in ours.found())
    assert any("its SHA-256 is not the receipt's" in each.what for each in ours.found(with_receipt=True))


def test_state_that_was_redistributed_by_others_is_said_to_be_unchecked(rescaled: Rewritten, tmp_path: Path) -> None:
    assert rescaled.verify().unchecked == ()
    report = rescaled.copy(tmp_path / "chk").foreign().verify()
    assert report.verdict == "balanced"
    assert [line.partition(":")[0] for line in report.unchecked if "redistributed" in line] == ["gen", "slow"]


def test_state_of_a_copy_is_compared_with_the_source_and_named(copied: Rewritten) -> None:
    state = next(path for path in copied.path.iterdir() if path.stat().st_size == 10903)
    state.write_bytes(state.read_bytes()[:-1] + b"\x55")
    (difference,) = copied.found()
    assert "the state of subtask 0 of operator slow is not the source's" in difference.what


def test_a_channel_of_the_output_that_cannot_be_read_is_named_with_what_it_lost(copied: Rewritten) -> None:
    with Checkpoint(copied.source) as checkpoint:
        (exchange,) = read_spec(copied.spec)
        elements = checkpoint.elements(exchange, Channel("main", 1, 2)).whole()
    raw = elements.data[elements.starts[30] : elements.ends[30]]
    path = next(path for path in copied.path.iterdir() if raw in path.read_bytes())
    path.write_bytes(path.read_bytes().replace(raw, b"\x55" + raw[1:]))
    found = copied.found()
    assert ("main", 1, 2) in [(e.target.exchange, e.target.up, e.target.down) for e in found if e.target]
    (missing,) = [each for each in found if each.kind is Kind.MISSING]
    assert (str(missing.channel), missing.positions[0]) == ("main 1→2", 30)


def test_another_watermark_is_found_with_its_channel(copied: Rewritten, rescaled: Rewritten, tmp_path: Path) -> None:
    """In place where nothing merges; as the one that closes a channel where several do."""
    last = struct.pack(">ibq", 9, 2, 1700000001689)
    for target in (copied, rescaled.copy(tmp_path / "rescaled").foreign()):
        path = next(path for path in sorted(target.path.iterdir()) if last in path.read_bytes())
        path.write_bytes(path.read_bytes().replace(last, struct.pack(">ibq", 9, 2, 1700000001690), 1))
        (difference,) = target.found()
        assert difference.kind is Kind.OTHER_ELEMENTS
        assert difference.target is not None
        assert (difference.channel == difference.target) == (target is copied)


def key_of(down: int) -> int:
    """A key that this one of two subtasks owns."""
    (exchange,) = read_spec(SPEC.format(partitioner="hash"))
    group = reading_of(exchange, MAX_PARALLELISM).group
    assert group is not None
    return next(key for key in range(100) if group({"f0": key}) * 2 // MAX_PARALLELISM == down)


EVERY_KIND = watermark(7) + latency_marker() + status(idle=True) + attributes() + status(idle=False)
SILENT = {
    (0, 0): record(key_of(0), "a") + EVERY_KIND + record(key_of(0), "b") + watermark(9),
    (1, 1): record(key_of(1), "d") + watermark(4) + status(idle=True),
}
ALL = SILENT | {
    (0, 1): watermark(8) + status(idle=True),
    (1, 0): watermark(5) + record(key_of(0), "c") + status(idle=True) + watermark(6),
}


@pytest.mark.parametrize(
    ("streams", "partitioner", "parallelism", "ways"),
    [
        (ALL, "hash", "same", {"kept", "written"}),
        (ALL, "hash", "3", {"kept", "dropped", "written", "closing"}),
        (ALL, "hash", "gen=2,slow=4", {"kept", "dropped", "written"}),
        (ALL, "rebalance", "gen=2,slow=1", {"merged", "dropped", "closing"}),
        (SILENT, "hash", "1", {"merged", "dropped"}),
    ],
)
def test_what_is_no_record_goes_where_the_second_reader_expects_it(
    tmp_path: Path, streams: dict[tuple[int, int], bytes], partitioner: str, parallelism: str, ways: set[str]
) -> None:
    """Two implementations of one rule: kept, replicated, merged; with idle channels and with silent ones."""
    source = write_checkpoint(tmp_path / "source", 2, 2, streams)
    target = rewrite(source, SPEC.format(partitioner=partitioner), parallelism, tmp_path / "out")
    assert target.found(with_receipt=True) == []
    assert target.receipt is not None
    assert {way for way, counts in target.receipt["other_elements"].items() if any(counts.values())} == ways


def test_a_watermark_that_closes_a_channel_is_input_where_all_output_was_left_out(tmp_path: Path) -> None:
    """The only record in output state of the channels that merge is dropped on request; others keep theirs."""
    streams = {
        (0, 0): (record(1) + watermark(5), record(2)),
        (0, 1): (watermark(6), b""),
        (1, 0): (watermark(3), record(3)),
    }
    source = write_checkpoint(tmp_path / "source", 2, 2, streams)
    spec = SPEC.format(partitioner="rebalance")
    target = rewrite(source, spec, "gen=2,slow=1", tmp_path / "out", drop_records=("main:0:0:2",))
    report = target.verify(with_receipt=True)
    assert (report.verdict, report.differences) == ("partial", ())


@pytest.mark.parametrize(("partitioner", "parallelism"), [("rebalance", "gen=2,slow=2"), ("hash", "2"), ("hash", "5")])
def test_equal_records_of_several_channels_are_each_found_where_they_belong(
    tmp_path: Path, partitioner: str, parallelism: str
) -> None:
    """New subtask 0 has the record of old subtask 2, and must not be taken for the one that has that of subtask 1."""
    same = record(5) if partitioner == "rebalance" else record(key_of(0))
    streams = {(0, 0): record(1), (0, 1): same + record(2) + same, (0, 2): same, (1, 2): same}
    if partitioner == "hash":
        streams = {(0, 0): same + record(key_of(0), "b") + same, (1, 0): same}
    source = write_checkpoint(tmp_path / "source", 2, 2 if partitioner == "hash" else 3, streams)
    target = rewrite(source, SPEC.format(partitioner=partitioner), parallelism, tmp_path / "out")
    assert target.found(with_receipt=True) == []


def first_apart(values: pa.StructArray, parallelism: int, max_parallelism: int) -> Any:
    """An owner function that divides equal records."""
    return (np.arange(len(values)) == 0).astype(np.int64)


def test_equal_records_that_a_function_divides_leave_their_order_unchecked(tmp_path: Path) -> None:
    """Subtask 0 has b and the second a, subtask 1 the first; in the target the two a cannot be told apart."""
    spec = SPEC.format(partitioner="custom").replace("key: [f0]", f"owner: {__name__}:first_apart")
    streams = {(0, 0): record(5, "a") + record(5, "b") + record(5, "a")}
    source = write_checkpoint(tmp_path / "source", 1, 1, streams)
    target = rewrite(source, spec, "gen=1,slow=2", tmp_path / "out")
    report = target.verify(with_receipt=True)
    assert (report.verdict, report.differences) == ("balanced", ())
    assert any("their order was not compared" in line for line in report.unchecked)
