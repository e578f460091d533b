"""A recovery into ``checkpoint:DIR``: every element of the source is in it once, on its side, at its new place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cdr_core.audit.independent.claims import read_claims
from cdr_core.audit.independent.verify import Request, verify
from cdr_core.phases.request import RecoveryRequest
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints

RESCALED = [
    ("a_p3_thr0", "2"),
    ("a_p3_thr0", "5"),
    ("a_p3_thr1mb", "2"),
    ("b_p3_thr0", "2"),
    ("d_p4_thr0", "3"),
    ("e_p4_seg32k", "6"),
    ("f_p3_thr0", "2"),
    ("g_p7_thr0", "2"),
    ("v4_a_p3_back_pressure", "2"),
    ("v5_a_p3_back_pressure", "5"),
]
SAME = [
    "a_p3_thr0",
    "a_p3_thr1mb",
    "r_p3_rocks_inc_true",
    "a_p2_file_merging",
    "a_p2_changelog_files",
    "a_p2_changelog_memory",
    "a_p2_forst_incremental",
]


def rewrite(source: FixtureCheckpoint, parallelism: str, out: Path) -> Mapping[str, Any]:
    """The receipt of a recovery into ``out``."""
    request = RecoveryRequest(str(source.path), str(source.spec), parallelism, f"checkpoint:{out}")
    repository, recovery, settings = inline.start(request)
    with repository:
        result = inline.run_all(repository, recovery, settings)
        receipt = repository.receipt(recovery)
    assert receipt is not None
    assert result["verdict"] == "balanced"
    return receipt


def require_verified(source: FixtureCheckpoint, out: Path, receipt: Mapping[str, Any]) -> None:
    claims = read_claims(json.dumps(receipt).encode(), "the receipt")
    report = verify(Request(str(source.path), f"checkpoint:{out}", str(source.spec), "", claims))
    assert report.differences == ()
    assert (report.verdict, report.source.records) == ("balanced", report.output.records)
    assert report.output.records == len(list(source.oracle.records))


@pytest.mark.parametrize(("name", "parallelism"), RESCALED)
def test_every_record_is_in_the_rewritten_checkpoint_once_and_at_its_owner(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, name: str, parallelism: str
) -> None:
    source, out = fixture_checkpoint(name), tmp_path / "out"
    receipt = rewrite(source, parallelism, out)
    require_verified(source, out, receipt)
