"""The history of restore drills."""

from __future__ import annotations

import pytest

from cdr_core.errors import Refused
from cdr_core.metadata import DrillOutcome, Repository
from tests.metadata.steps import new_recovery


def test_a_drill_has_one_recovery_and_one_result(repository: Repository) -> None:
    drill = repository.begin_drill("/checkpoints", {"parallelism": "2"})
    assert repository.drill(drill.id) == drill
    assert (drill.result, drill.checks, drill.recovery_id) == (None, (), None)
    first, _ = repository.create_recovery(new_recovery(target="none:"))
    second, _ = repository.create_recovery(new_recovery(target="none:"))
    repository.set_drill_recovery(drill.id, first.id)
    repository.set_drill_recovery(drill.id, first.id)
    with pytest.raises(Refused, match=f"runs recovery {first.id}, not {second.id}"):
        repository.set_drill_recovery(drill.id, second.id)
    ended = repository.end_drill(drill.id, DrillOutcome.PASSED, checks=[{"name": "balance"}], rto_s=1.5)
    assert repository.drill(drill.id) == ended
    assert (ended.result, ended.rto_s, ended.rpo_s) == (DrillOutcome.PASSED, 1.5, None)
    assert (ended.checks, ended.recovery_id) == (({"name": "balance"},), first.id)
    with pytest.raises(Refused, match="has a result already"):
        repository.end_drill(drill.id, DrillOutcome.FAILED)


def test_drills_are_listed_with_and_without_a_result(repository: Repository) -> None:
    ids = [repository.begin_drill(f"/{n}", {}).id for n in range(3)]
    repository.end_drill(ids[1], DrillOutcome.COULD_NOT_RUN, error="no checkpoint")
    found = {drill.id: drill.result for drill in repository.drills()}
    assert found == {ids[0]: None, ids[1]: DrillOutcome.COULD_NOT_RUN, ids[2]: None}
    assert len(repository.drills(limit=2)) == 2


def test_unknown_drills_and_recoveries_are_refused(repository: Repository) -> None:
    with pytest.raises(Refused, match="there is no drill d-0"):
        repository.drill("d-0")
    drill = repository.begin_drill("/", {})
    with pytest.raises(Refused, match="there is no recovery r-0"):
        repository.set_drill_recovery(drill.id, "r-0")
