"""Recoveries whose key nothing proves: every verdict names it, and it is refused only where the key decides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdr_core.errors import SpecRefused
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.verify.claims import read_claims
from cdr_core.verify.verify import Request, verify
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.generated import KEYED, generated

WRONG = KEYED.replace("[f0]", "[f2]")


@pytest.mark.parametrize(("parallelism", "new"), [("3", "same"), ("6", "3"), ("1", "1")])
@pytest.mark.parametrize("kind", ["parquet", "checkpoint"])
@pytest.mark.parametrize("on_corrupt", ["fail", "quarantine"])
def test_a_wrong_key_that_decides_nothing_is_recovered_and_reported(
    tmp_path: Path, parallelism: str, new: str, kind: str, on_corrupt: str
) -> None:
    source, to = generated(tmp_path / "chk-1", parallelism, "100kB"), f"{kind}:{tmp_path / 'out'}"
    request = RecoveryRequest(source, WRONG, new, to, on_corrupt=on_corrupt)
    repository, recovery, settings = inline.start(request, trust_key=False)
    result = inline.run_all(repository, recovery, settings)
    assert (result["verdict"], result["proven"]) == ("balanced", False)
    receipt = repository.receipt(recovery)
    assert receipt is not None
    assert receipt["exchanges"][0]["key"]["proven"] is False
    claims = read_claims(json.dumps(receipt).encode(), "the receipt")
    for report in (verify(Request(source, to, WRONG, new, claims)), verify(Request(source, to, WRONG, new))):
        assert (report.verdict, report.exit_code, report.differences) == ("balanced", 0, ())
        assert report.unproven


def test_a_type_that_no_record_fits_is_refused_before_anything_runs(tmp_path: Path) -> None:
    source = generated(tmp_path / "chk-1", "3", "100kB")
    spec = KEYED.replace("TUPLE<LONG, INT, LONG, STRING>", "TUPLE<LONG, INT, STRING>")
    with pytest.raises(SpecRefused, match="not even the first records of its 9 sampled channels fit"):
        inline.start(RecoveryRequest(source, spec, "2", f"parquet:{tmp_path / 'out'}"))


def test_a_proven_key_is_still_checked_where_it_decides_nothing(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    fixture = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(fixture.path), str(fixture.spec), "same", f"parquet:{tmp_path / 'out'}")
    repository, recovery, settings = inline.start(request, trust_key=False)
    assert inline.run_all(repository, recovery, settings)["proven"] is True
    plan = json.loads(Path(str(repository.recovery(recovery).plan_uri)).read_text())
    assert plan["exchanges"][0]["key_checked"] is True
