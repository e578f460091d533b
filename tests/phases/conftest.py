"""A recovery that is ready to be drained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.phases.asking import Spilled
from tests.support import draining
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.draining import make_slow


@pytest.fixture
def spilled(
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Spilled]:
    """A recovery that is ready to be drained, of which no checkpoint is taken unasked; a driver that hears at once."""
    make_slow(monkeypatch, "")
    monkeypatch.setenv("CDR_COMMIT", getattr(request, "param", "at-end"))
    monkeypatch.setattr("cdr_core.runtime.driver.HEARTBEAT_SECONDS", -1.0)
    checkpoint, out = fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out"
    started = draining.spilled(RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{out}", "0s"))
    yield started, checkpoint, out
    started[0].close()
