"""A second metadata database: the same checkpoint to the same target is refused by what the target shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdr_core.errors import Refused
from cdr_core.metadata import Phase
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.commit.targets import Target
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints

RECORDS = 1878


@pytest.fixture
def wish(empty_target: Target, fixture_checkpoint: FixtureCheckpoints) -> RecoveryRequest:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    return RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", empty_target.name)


@pytest.mark.seed("E01")
@pytest.mark.parametrize("empty_target", ["parquet"], indirect=True)
def test_it_is_refused_before_anything_is_made_and_names_the_recovery_that_did_it(
    wish: RecoveryRequest, empty_target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first database, a second start attaches as ever."""
    repository, first, settings = inline.start(wish)
    inline.run_all(repository, first, settings)
    assert inline.start(wish)[1] == first
    monkeypatch.setenv("CDR_HOME", str(tmp_path / "another"))
    with pytest.raises(Refused, match=f"recovery {first} has published this very checkpoint") as caught:
        inline.start(wish)
    assert caught.value.exit_code == 3
    assert (empty_target.commits(), len(empty_target.rows())) == (1, RECORDS)


@pytest.mark.seed("E01")
@pytest.mark.parametrize("empty_target", ["parquet"], indirect=True)
def test_of_two_that_run_at_once_the_second_to_publish_is_refused(
    wish: RecoveryRequest, empty_target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it was created there was nothing to be seen."""
    mine = inline.start(wish)
    monkeypatch.setenv("CDR_HOME", str(tmp_path / "another"))
    repository, recovery, settings = inline.start(wish)
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL, Phase.DRAIN):
        inline.run(repository, recovery, phase, settings)
    inline.run_all(*mine)
    with pytest.raises(Refused, match=f"recovery {mine[1]} has published this very checkpoint"):
        inline.run(repository, recovery, Phase.COMMIT, settings)
    assert (empty_target.commits(), len(empty_target.rows())) == (1, RECORDS)
    assert (repository.commit_log(recovery), repository.receipt(recovery)) == ((), None)
