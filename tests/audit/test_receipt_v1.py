"""Receipts of version 1 list every line of every ledger; verify still holds each line to the bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cdr_core.audit.receipt import proof_sha256, sealed
from cdr_core.verify.checkpoint import Channel, Checkpoint
from cdr_core.verify.framing import KINDS
from cdr_core.verify.spec import read_spec
from tests.audit.recovered import Recovered, validate

Lines = dict[str, list[dict[str, Any]]]


def others_of(recovered: Recovered) -> dict[Channel, dict[str, int]]:
    found = {}
    with Checkpoint(recovered.source) as checkpoint:
        for exchange in read_spec(recovered.spec):
            for block in checkpoint.blocks(exchange):
                for number in range(len(block.up)):
                    elements = block.elements(number)
                    kinds = (KINDS[elements.data[start]] for start in elements.starts)
                    found[block.channel(number)] = dict(Counter(kind for kind in kinds if kind != "record"))
    return found


def listed(recovered: Recovered) -> Lines:
    """The lines of the ledger file, as version 1 wrote them."""
    lines: Lines = {phase: [] for phase in ("read", "filter", "spill", "drain", "commit")}
    others = others_of(recovered)
    for row in pq.read_table(recovered.receipt["ledger"]["uri"]).to_pylist():
        phase, first, second = row.pop("ledger"), row.pop("first"), row.pop("second")
        kinds = others[Channel(row["exchange"], row["up"], row["down"])] if phase == "read" else {}
        words = {"fingerprint": f"{first:016x}{second:016x}", "chain": f"{row.pop('chain'):016x}"}
        lines[phase].append({**row, **words, "others": kinds})
    return lines


def as_version_1(recovered: Recovered, to: Path, edit: Callable[[Lines], Any]) -> Recovered:
    """A copy of the recovery whose receipt and publication are of version 1, with edited lines."""
    ours, lines = recovered.copy(to), listed(recovered)
    edit(lines)
    proof = {**ours.receipt["proof"], "version": 1, "ledgers": lines}
    receipt = {name: value for name, value in ours.receipt.items() if name != "ledger"}
    receipt |= {"version": 1, "proof": proof, "proof_sha256": proof_sha256(proof)}
    found = replace(ours, receipt=sealed(receipt))
    found.publish(receipt["proof_sha256"])
    return found


def test_a_receipt_of_version_1_is_balanced_and_fits_the_schema(recovered: Recovered, tmp_path: Path) -> None:
    ours = as_version_1(recovered, tmp_path / "out", lambda lines: None)
    validate(ours.receipt)
    report = ours.verify(with_receipt=True, parallelism="2")
    assert (report.differences, report.verdict) == ((), "balanced")


def set_last(phase: str, **values: Any) -> Callable[[Lines], Any]:
    return lambda lines: lines[phase][-1].update(values)


EDITS: dict[str, tuple[Callable[[Lines], Any], str]] = {
    "records": (set_last("read", records=7), "the receipt's ledger has 7 records of"),
    "bytes": (set_last("commit", bytes=1), "records of 1 bytes for new subtask"),
    "a chain": (set_last("commit", chain="0" * 16), "the same records in another order"),
    "a fingerprint": (set_last("read", fingerprint="0" * 32), "that are not the same"),
    "other elements": (set_last("read", others={"watermark": 99}), "the receipt's ledger has 99 watermark, the source"),
    "a missing line": (lambda lines: lines["commit"].pop(), "the receipt's ledger has 0 records of 0 bytes"),
    "a line of another channel": (set_last("commit", up=9), "the output 0 records of 0 bytes"),
}


@pytest.mark.parametrize("case", EDITS)
def test_an_edited_line_is_named_with_its_channel(recovered: Recovered, tmp_path: Path, case: str) -> None:
    edit, sentence = EDITS[case]
    report = as_version_1(recovered, tmp_path / "out", edit).verify(with_receipt=True, parallelism="2")
    assert report.exit_code == 2
    assert any(sentence in each.what for each in report.differences if each.channel is not None)
