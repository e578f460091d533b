"""The metadata database goes away in the middle of a commit phase: a real server, stopped at each of its steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdr_core.commit.commit_store import DatabaseCommitLog
from cdr_core.metadata import Phase, Repository
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.commit.targets import ParquetTarget
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.postgres import Postgres, running_postgres

RECORDS = 1878


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.mark.seed("E45", "E46")
def test_without_a_database_nothing_is_published_and_nothing_that_is_published_counts_as_done(
    own_postgres: Postgres, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Away at the intent, at the last look at the epoch, and at the record; each retry meets the next one."""
    monkeypatch.setenv("CDR_DATABASE_URL", own_postgres.create())
    target, checkpoint = ParquetTarget(tmp_path), fixture_checkpoint("a_p3_thr0", 2)
    wish = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", target.name)
    repository, recovery, settings = inline.start(wish)
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL, Phase.DRAIN):
        inline.run(repository, recovery, phase, settings)
    repository.close()
    fired = []
    for step, published in (("intend", 0), ("require_current", 0), ("record", 1)):
        with monkeypatch.context() as fault:
            original = getattr(DatabaseCommitLog, step)

            def away(log: Any, *given: Any, step: str = step, original: Any = original) -> Any:
                own_postgres.stop()
                fired.append(step)
                return original(log, *given)

            fault.setattr(DatabaseCommitLog, step, away)
            status = inline.main([str(Phase.COMMIT), recovery])
        own_postgres.start()
        assert (step, status, target.commits()) == (step, 1, published)
        with Repository.open(settings.database_url) as after:
            assert after.receipt(recovery) is None
            assert [str(row.state) for row in after.commit_log(recovery)] == ([] if step == "intend" else ["INTENT"])
    assert fired == ["intend", "require_current", "record"]
    assert inline.main([str(Phase.COMMIT), recovery]) == 0
    assert (target.commits(), len(target.rows())) == (1, RECORDS)
    with Repository.open(settings.database_url) as done:
        assert [str(row.state) for row in done.commit_log(recovery)] == ["DONE"]
        receipt = done.receipt(recovery)
    assert receipt is not None
    assert receipt["publication"]["found_by_look_up"] is True
