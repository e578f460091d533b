"""The ledger file of a receipt, and ledgers that the second reader computes itself."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdr_core.audit.receipt import sealed
from cdr_core.errors import Unreadable
from cdr_core.kernels.fingerprint import FOLD_COLUMNS, fold_records
from cdr_core.verify import fingerprints as independent_fingerprints
from cdr_core.verify import framing
from cdr_core.verify.checkpoint import Channel, Checkpoint
from cdr_core.verify.claims import read_claims
from cdr_core.verify.fingerprints import chains, fingerprints
from cdr_core.verify.report import Kind, Report
from cdr_core.verify.spec import read_spec
from cdr_core.verify.verify import Request, verify
from tests.audit.recovered import Recovered, recover
from tests.support.generated import KEYED, generated

Edit = Callable[[list[dict[str, Any]]], Any]


def with_ledger(recovered: Recovered, folder: Path, data: bytes, *, sign: bool) -> Report:
    """Verify with another ledger file; ``sign``: the receipt has its sum."""
    file = folder / "ledger.parquet"
    file.write_bytes(data)
    stated = {"uri": str(file), "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    ledger = stated if sign else {**recovered.receipt["ledger"], "uri": str(file)}
    receipt = sealed({**recovered.receipt, "ledger": ledger})
    return replace(recovered, receipt=receipt).verify(with_receipt=True, parallelism="2")


def ledger_bytes(recovered: Recovered) -> bytes:
    return Path(recovered.receipt["ledger"]["uri"]).read_bytes()


def edited(recovered: Recovered, edit: Edit) -> bytes:
    """The ledger file with other lines."""
    table = pq.read_table(pa.BufferReader(ledger_bytes(recovered)))
    rows = table.to_pylist()
    edit(rows)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def more(name: str) -> Edit:
    return lambda rows: rows[-1].update({name: rows[-1][name] + 1})


EDITS: dict[str, Edit] = {
    **{f"another {name}": more(name) for name in ("records", "bytes", "first", "second", "chain", "new_down", "up")},
    "another exchange": lambda rows: rows[-1].update(exchange="other"),
    "a missing line": lambda rows: rows.pop(),
    "a doubled line": lambda rows: rows.append(rows[-1]),
    "swapped lines": lambda rows: rows.insert(0, rows.pop(1)),
    "no lines": lambda rows: rows.clear(),
    "a whole ledger missing": lambda rows: rows.__setitem__(slice(None), [r for r in rows if r["ledger"] == "read"]),
}


@pytest.mark.parametrize("sign", [False, True])
@pytest.mark.parametrize("case", EDITS)
def test_other_lines_than_those_of_the_digest_are_a_difference(
    recovered: Recovered, tmp_path: Path, case: str, sign: bool
) -> None:
    report = with_ledger(recovered, tmp_path, edited(recovered, EDITS[case]), sign=sign)
    assert report.exit_code == 2
    assert any("do not have the digest of the proof" in each.what for each in report.differences)
    assert any("not the ledger file" in each.what for each in report.differences) == (not sign)


def test_another_line_is_named_with_its_channel_and_new_subtask(recovered: Recovered, tmp_path: Path) -> None:
    last = pq.read_table(recovered.receipt["ledger"]["uri"]).to_pylist()[-1]
    report = with_ledger(recovered, tmp_path, edited(recovered, more("records")), sign=True)
    (named,) = (each for each in report.differences if each.channel)
    assert named.channel == Channel(last["exchange"], last["up"], last["down"])
    assert f"{last['records'] + 1} records of {last['bytes']} bytes for new subtask {last['new_down']}" in named.what
    assert f"the output {last['records']} records of {last['bytes']} bytes" in named.what


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_byte_of_the_file_that_is_another_missing_or_cut_is_never_balanced(
    recovered: Recovered, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = ledger_bytes(recovered)
    at = data.draw(st.integers(0, len(whole) - 1))
    other = bytes([whole[at] ^ data.draw(st.integers(1, 255))])
    damaged = data.draw(
        st.sampled_from([whole[:at], whole[:at] + whole[at + 1 :], whole[:at] + other + whole[at + 1 :]])
    )
    try:
        report = with_ledger(recovered, tmp_path_factory.mktemp("damaged"), damaged, sign=data.draw(st.booleans()))
    except Unreadable:
        return
    assert report.verdict == "unbalanced" or _same_lines(damaged, whole)


def _same_lines(damaged: bytes, whole: bytes) -> bool:
    """A byte that Parquet does not need, in a file whose sum the receipt has."""
    return bool(pq.read_table(pa.BufferReader(damaged)).equals(pq.read_table(pa.BufferReader(whole))))


def test_an_unsigned_change_of_any_byte_is_a_difference(recovered: Recovered, tmp_path: Path) -> None:
    whole = ledger_bytes(recovered)
    at = whole.rindex(b"parquet-cpp")
    report = with_ledger(recovered, tmp_path, whole[:at] + b"P" + whole[at + 1 :], sign=False)
    assert report.exit_code == 2
    assert "not the ledger file that the receipt was written with" in report.differences[0].what


def test_a_file_that_is_gone_is_an_error_unless_it_lies_beside_the_receipt(
    recovered: Recovered, tmp_path: Path
) -> None:
    gone = sealed({**recovered.receipt, "ledger": {**recovered.receipt["ledger"], "uri": "/nowhere/ledger.parquet"}})
    data, output = json.dumps(gone).encode(), f"parquet:{recovered.output}"
    request = Request(recovered.source, output, recovered.spec, "2", read_claims(data, "it", str(tmp_path)))
    with pytest.raises(Unreadable, match=r"ledger file cannot be found: /nowhere/ledger\.parquet and ") as caught:
        verify(request)
    assert caught.value.exit_code == 5
    shutil.copy(recovered.receipt["ledger"]["uri"], tmp_path)
    assert verify(request).verdict == "balanced"


TWO = (
    KEYED
    + """  - name: back
    upstream: {operator: slow, partition: 0}
    downstream: {operator: sink, gate: 0}
    partitioner: rebalance
    record: TUPLE<LONG, STRING>
"""
)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Recovered:
    """Two exchanges and some thousand channels, at parallelism 40 and then 24."""
    folder = tmp_path_factory.mktemp("many")
    source = generated(folder / "chk-1", parallelism="40", size="2MB", spec=TWO)
    return recover(source, TWO, "24", folder)


def test_thousands_of_channels_of_two_exchanges_are_balanced(many: Recovered) -> None:
    report = many.verify(with_receipt=True, parallelism="24")
    assert (report.differences, report.verdict) == ((), "balanced")
    assert report.channels > 3000


def test_one_changed_record_of_thousands_of_channels_of_the_output_is_named(many: Recovered, tmp_path: Path) -> None:
    ours, touched = many.copy(tmp_path / "out"), []

    def one(rows: list[dict[str, Any]]) -> None:
        row = rows[len(rows) // 2]
        row["fingerprint"] = row["fingerprint"][:-1] + bytes([row["fingerprint"][-1] ^ 1])
        touched.append((Channel(row["exchange"], row["up"], row["down"]), row["pos"], row["new_down"]))

    ours.rewrite(0, one)
    report = ours.verify(with_receipt=True, parallelism="24")
    channel, position, new_down = touched[0]
    named = {each.channel for each in report.differences if each.channel}
    changed = [
        each for each in report.differences if each.kind is Kind.CHANGED and each.what.startswith("1 record cha")
    ]
    assert named == {channel}
    assert [each.positions for each in changed] == [(position,)]
    assert any(f"for new subtask {new_down}" in each.what for each in report.differences if each.channel)


def test_one_changed_record_of_thousands_of_channels_of_the_source_is_named(many: Recovered, tmp_path: Path) -> None:
    source = Path(shutil.copytree(many.source, tmp_path / "chk-1"))
    exchange = read_spec(TWO)[1]
    with Checkpoint(str(source)) as checkpoint:
        block = next(checkpoint.blocks(exchange))
        number = int(np.flatnonzero(np.diff(block.frames.first))[700])
        elements, channel = block.elements(number), block.channel(number)
    raw = elements.data[elements.starts[0] : elements.ends[0]]
    (file,) = (path for path in source.iterdir() if path.name != "_metadata" and raw in path.read_bytes())
    file.write_bytes(file.read_bytes().replace(raw, raw[:-1] + bytes([raw[-1] ^ 1])))
    report = many.verify(with_receipt=True, source=str(source), parallelism="24")
    assert {each.channel for each in report.differences if each.channel} == {channel}
    assert any("that are not the same" in each.what for each in report.differences if each.channel)
    assert any("exchange back, old subtask" in each.what for each in report.differences)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=90), min_size=1, max_size=80), st.integers(1, 10))
def test_fingerprints_and_chains_are_those_of_the_pipeline(records: list[bytes], lanes: int) -> None:
    data, ends = b"".join(records), np.cumsum([len(each) for each in records])
    starts = ends - [len(each) for each in records]
    lane = np.sort(np.arange(len(records)) % lanes)
    sums = np.zeros((min(lanes, len(records)), FOLD_COLUMNS), np.uint64)
    fold_records(np.frombuffer(data, np.uint8), starts, ends, lane, sums)
    begins = np.searchsorted(lane, np.arange(len(sums)))
    for few in (0, 1 << 20):  # all records at once, and one after the other
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(independent_fingerprints, "FEW", few)
            words = fingerprints(data, starts, ends)
        assert (np.add.reduceat(words, begins) == sums[:, :2]).all()
        assert (chains(words[:, 0].copy(), begins) == sums[:, 2]).all()


ELEMENTS = st.one_of(
    st.binary(min_size=8, max_size=30).map(lambda value: b"\0" + value),
    st.binary(max_size=30).map(lambda value: b"\1" + value),
    st.binary(min_size=8, max_size=8).map(lambda value: b"\2" + value),
    st.sampled_from([b"\4\0\0\0\0", b"\4\0\0\0\1", b"\5\1", b"\5\2", b"\7", b"", b"\0", b"\2\0"]),
)
FRAMED = st.lists(ELEMENTS, max_size=4).map(lambda found: b"".join(len(e).to_bytes(4, "big") + e for e in found))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(FRAMED, st.sampled_from([b"", b"", b"\0", b"\0\0\0\x14\1cut"])).map(b"".join), max_size=12))
def test_channels_read_together_have_the_elements_that_each_has_alone(channels: list[bytes]) -> None:
    begins = np.append(0, np.cumsum([len(each) for each in channels], dtype=np.int64)).astype(np.int64)
    found = []
    for few in (0, 1 << 20):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(framing, "FEW", few)
            frames = framing.find_frames(b"".join(channels), begins)
        columns = (each.tolist() for each in (frames.starts, frames.ends, frames.first))
        found.append((*columns, frames.wrong))
    assert found[0] == found[1]
