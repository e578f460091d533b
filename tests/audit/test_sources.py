"""Real checkpoints against what was made of them: recoveries balance, a dropped record is named, damage is not read."""

from __future__ import annotations

import shutil
from itertools import combinations
from pathlib import Path

import pytest

from cdr_core.errors import Corrupt, Refused, SpecRefused
from cdr_core.verify.checkpoint import Channel, Checkpoint
from cdr_core.verify.report import Kind
from cdr_core.verify.spec import read_spec
from cdr_core.verify.verify import Request, verify
from tests.audit.recovered import Recovered, recover
from tests.support.bucket import Bucket
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.generated import generated


@pytest.mark.parametrize(
    ("name", "number", "parallelism"),
    [
        ("a_p3_thr0", 2, "5"),
        ("a_p3_thr0", 1, "same"),
        ("a_p3_thr1mb", 2, "2"),
        ("b_p3_thr0", 2, "2"),
        ("c_p7_thr0", 2, "2"),
        ("d_p4_thr0", 2, "3"),
        ("d_p4_thr0", 2, "slow=6"),
        ("e_p4_seg32k", 2, "6"),
        ("f_p3_thr0", 2, "2"),
        ("g_p7_thr0", 2, "2"),
        ("r_p3_rocks_inc_true", 2, "5"),
        ("v5_a_p3_thr0", 1, "2"),
    ],
)
def test_every_recovery_of_a_shipped_checkpoint_is_balanced(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, name: str, number: int, parallelism: str
) -> None:
    shipped = fixture_checkpoint(name, number)
    recovered = recover(str(shipped.path), str(shipped.spec), parallelism, tmp_path)
    for with_receipt, given in ((True, parallelism), (False, "")):
        report = recovered.verify(with_receipt=with_receipt, parallelism=given)
        assert report.differences == ()
        assert report.verdict == "balanced"
        assert report.source == report.output
        assert report.source.records == len(list(shipped.oracle.records))
    assert all("not given" in line for line in report.unchecked), "types of all shipped checkpoints are known"


def test_another_parallelism_than_the_outputs_is_said(recovered: Recovered) -> None:
    kinds = {found.kind for found in recovered.verify(parallelism="3").differences}
    assert kinds == {Kind.MISPLACED}


RECORDS = {
    "several keys": ("TUPLE<INT, STRING, LONG>", "hash", "[f0, f1]"),
    "a row": ("ROW<id LONG, name STRING, ok BOOLEAN, x DOUBLE>", "hash", "[id]"),
    "a pojo": ("POJO<name STRING, id LONG>", "hash", "[id]"),
    "floats": ("TUPLE<DOUBLE, FLOAT, SHORT, BYTE, CHAR>", "hash", "[f0]"),
    "SQL": ("ROWDATA<a INT, b STRING, c DOUBLE, d BOOLEAN, e DECIMAL(38, 3), f SMALLINT>", "hash", "[b, a]"),
    "what is not read here": ("TUPLE<LONG, INSTANT, STRING>", "hash", "[f0]"),
    "a key that is not hashed here": ("TUPLE<INSTANT, STRING>", "hash", "[f0]"),
    "opaque": ("OPAQUE", "rebalance", "[]"),
    "global": ("TUPLE<LONG>", "global", "[]"),
}


@pytest.mark.parametrize("case", RECORDS)
def test_other_types_are_balanced_or_said_to_be_unchecked(tmp_path: Path, case: str) -> None:
    record, partitioner, key = RECORDS[case]
    spec = f"""
job: generated
exchanges:
  - name: main
    upstream: {{operator: gen, partition: 0}}
    downstream: {{operator: slow, gate: 0}}
    partitioner: {partitioner}
    record: {record}
    key: {key}
"""
    parallelism = "1" if partitioner == "global" else "3"
    source = generated(tmp_path / "chk-1", parallelism=parallelism, size="200kB", spec=spec)
    report = recover(source, spec, "2", tmp_path / "r").verify(with_receipt=True, parallelism="2")
    assert report.differences == ()
    assert report.source.records > 100
    assert bool(report.unchecked) == (case in ("SQL", "what is not read here", "a key that is not hashed here"))


def test_a_rewritten_checkpoint_holds_the_same_records(fixture_checkpoint: FixtureCheckpoints) -> None:
    source = fixture_checkpoint("a_p3_thr0", 2)
    target = fixture_checkpoint("rw_a_3to2_keep", 2)
    report = verify(Request(str(source.path), f"checkpoint:{target.path}", str(source.spec)))
    assert report.verdict == "balanced"
    assert report.source.records == report.output.records == 1878


def test_a_record_that_was_dropped_from_a_checkpoint_is_named(fixture_checkpoint: FixtureCheckpoints) -> None:
    source = fixture_checkpoint("a_p3_thr0", 2)
    target = fixture_checkpoint("rw_a_drop", 2)
    report = verify(Request(str(source.path), f"checkpoint:{target.path}", str(source.spec)))
    assert report.exit_code == 2
    (difference,) = report.differences
    assert (difference.kind, str(difference.channel), difference.count) == (Kind.MISSING, "main 0→1", 1)


def test_records_of_a_checkpoint_in_another_order_are_named(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    shipped = fixture_checkpoint("a_p3_thr0", 2)
    channel = Channel("main", 2, 0)
    with Checkpoint(str(shipped.path)) as checkpoint:
        (exchange,) = read_spec(str(shipped.spec))
        found = checkpoint.elements(exchange, channel).whole()
    raws = [found.data[start:end] for start, end in zip(found.starts, found.ends, strict=True)]
    files = {path.name: path.read_bytes() for path in shipped.path.iterdir()}
    name, one, two = next(
        (name, one, two)
        for one, two in combinations((raw for raw in raws if raw[0] == 0), 2)
        for name, data in files.items()
        if len(one) == len(two) and one in data and two in data
    )
    target = shipped.copy(tmp_path / "swapped")
    parts = files[name].replace(one, b"\0" * len(one)).replace(two, one).replace(b"\0" * len(one), two)
    (target / name).unlink()
    (target / name).write_bytes(parts)
    report = verify(Request(str(shipped.path), f"checkpoint:{target}", str(shipped.spec)))
    assert {(found.kind, found.channel) for found in report.differences} == {(Kind.OUT_OF_ORDER, channel)}


def test_a_checkpoint_is_equal_to_itself_and_not_to_its_neighbour(fixture_checkpoint: FixtureCheckpoints) -> None:
    one, two = fixture_checkpoint("a_p3_thr0", 1), fixture_checkpoint("a_p3_thr0", 2)
    assert verify(Request(str(one.path), f"checkpoint:{one.path}", str(one.spec))).verdict == "balanced"
    report = verify(Request(str(one.path), f"checkpoint:{two.path}", str(one.spec)))
    assert {found.kind for found in report.differences} >= {Kind.MISSING, Kind.EXTRA}


@pytest.mark.seed("002-08")
def test_a_source_that_was_cut_short_is_unreadable(recovered: Recovered, tmp_path: Path) -> None:
    """Never fewer records instead of an error."""
    for number, path in enumerate(sorted(Path(recovered.source).iterdir())):
        copy = Path(shutil.copytree(recovered.source, tmp_path / str(number)))
        (copy / path.name).write_bytes(path.read_bytes()[:-700])
        used = path.name == "_metadata" or path.read_bytes()[:4] == b"\0\0\0\0"
        if used:
            with pytest.raises(Corrupt):
                recovered.verify(source=str(copy))


def test_a_file_that_was_cut_short_at_a_record_border_is_unreadable_too(recovered: Recovered, tmp_path: Path) -> None:
    """Framing alone would not notice: what is left of the channel ends with a whole record."""
    copy = Path(shutil.copytree(recovered.source, tmp_path / "chk-2"))
    with Checkpoint(recovered.source) as checkpoint:
        (exchange,) = read_spec(recovered.spec)
        found = [checkpoint.elements(exchange, channel).whole() for channel in checkpoint.channels(exchange)]
    last = [each.data[each.starts[-1] - 4 :] for each in found]
    path, end = next((path, end) for path in copy.iterdir() for end in last if path.read_bytes().endswith(end))
    path.write_bytes(path.read_bytes()[: -len(end)])
    with pytest.raises(Corrupt, match="does not fit into its file"):
        recovered.verify(source=str(copy))


def test_a_source_without_one_of_its_files_is_unreadable(recovered: Recovered, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(recovered.source, tmp_path / "chk-2"))
    for path in copy.iterdir():
        if path.name != "_metadata" and path.read_bytes()[:4] == b"\0\0\0\0":
            path.unlink()
            break
    with pytest.raises(Corrupt, match="does not exist"):
        recovered.verify(source=str(copy))


def test_in_flight_records_that_the_spec_does_not_name_are_refused(fixture_checkpoint: FixtureCheckpoints) -> None:
    shipped = fixture_checkpoint("g_p7_thr0", 2)
    half = shipped.spec.read_text().split("  - name: bytes")[0]
    with pytest.raises(SpecRefused, match="no exchange of the spec names"):
        verify(Request(str(shipped.path), f"checkpoint:{shipped.path}", half))


@pytest.mark.parametrize("target", ["none:", "kafka:topic", "parquet:", "nothing"])
def test_a_target_that_cannot_be_verified_is_refused(recovered: Recovered, target: str) -> None:
    with pytest.raises(Refused):
        verify(Request(recovered.source, target, recovered.spec))


def test_source_and_output_may_lie_on_s3(recovered: Recovered, bucket: Bucket) -> None:
    source, output = bucket.upload(Path(recovered.source)), bucket.uri()
    for path in recovered.output.rglob("*"):
        if path.is_file():
            bucket.put(f"{output}/{path.relative_to(recovered.output)}", path.read_bytes())
    assert verify(Request(source, f"parquet:{output}", recovered.spec)).verdict == "balanced"
