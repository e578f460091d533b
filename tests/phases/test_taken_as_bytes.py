"""``none:raw``: every record is counted and fingerprinted on its way to nowhere, and none is decoded."""

from __future__ import annotations

from typing import Any

import pytest

from cdr_core.errors import CdrError, Refused
from cdr_core.metadata import Phase
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints


def _drained(checkpoint: Any, spec: str, to: str, parallelism: str) -> list[Any]:
    repository, recovery, settings = inline.start(RecoveryRequest(str(checkpoint.path), spec, parallelism, to))
    assert inline.run_all(repository, recovery, settings)["verdict"] == "balanced"
    drained = next(row.result for row in repository.phases(recovery) if row.name is Phase.DRAIN)
    return [(drained or {})[name] for name in ("records", "lines", "digest")]


def test_the_ledger_is_the_same_whether_values_are_decoded_or_not(fixture_checkpoint: FixtureCheckpoints) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    decoded, taken = (_drained(checkpoint, str(checkpoint.spec), to, "2") for to in ("none:", "none:raw"))
    assert decoded == taken
    assert taken[0] > 0


def test_only_the_one_that_decodes_says_that_values_cannot_be_read(fixture_checkpoint: FixtureCheckpoints) -> None:
    """What ``none:raw`` proves is less, and this is how much less."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    wrong = checkpoint.spec.read_text().replace("TUPLE<LONG,", "TUPLE<LONG, LONG,")
    assert wrong != checkpoint.spec.read_text()
    with pytest.raises(CdrError):
        _drained(checkpoint, wrong, "none:", "same")
    assert _drained(checkpoint, wrong, "none:raw", "same")


def test_another_address_is_refused(fixture_checkpoint: FixtureCheckpoints) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    with pytest.raises(Refused, match="none:raw"):
        inline.start(RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", "none:somewhere"))
