"""``cdr_core.api``, as a notebook calls it. The shell's tests cover the rest: each command is one call."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdr_core import api
from cdr_core import settings as settings_module
from cdr_core.errors import Refused, Unreadable
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints


def test_a_checkpoint_is_opened_inspected_and_planned(fixture_checkpoint: FixtureCheckpoints, tmp_path: Path) -> None:
    shipped = fixture_checkpoint("a_p3_thr0", 2)
    assert (
        api.open_checkpoint(str(shipped.path)).metadata.checkpoint_id == api.inspect(str(shipped.path))["checkpoint_id"]
    )
    found = api.plan(str(shipped.path), str(shipped.spec), "2", f"parquet:{tmp_path / 'out'}")
    assert (found.refusals, found.value["totals"]["records"]) == ((), 1878)
    refused = api.plan(str(shipped.path), str(shipped.spec), "no number")
    assert [type(error) for error in refused.refusals] != []
    with pytest.raises(Unreadable):
        api.inspect(str(tmp_path / "nowhere"))


def test_a_recovery_is_created_once_and_verified_by_its_id(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    shipped = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(shipped.path), str(shipped.spec), "2", f"parquet:{tmp_path / 'out'}")
    recovery = api.create(request)
    assert api.create(request) == recovery
    with pytest.raises(Refused, match="has no receipt"):
        api.verify(recovery)
    repository, same, settings = inline.start(request)
    assert same == recovery
    inline.run_all(repository, recovery, settings)
    assert api.verify(recovery).verdict == "balanced"


def test_a_recovery_is_started_over_once(fixture_checkpoint: FixtureCheckpoints, tmp_path: Path) -> None:
    shipped = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(shipped.path), str(shipped.spec), "2", f"parquet:{tmp_path / 'out'}")
    recovery = api.create(request, settings=settings_module.load())
    newer = api.start_over(recovery, "token", parallelism="same")
    assert newer == f"{recovery}-g2"
    with pytest.raises(Refused, match="was replaced by"):
        api.start_over(recovery, "token", parallelism="same")
