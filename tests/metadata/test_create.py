"""One recovery per checkpoint and target, however many ask."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import update

from cdr_core.errors import Refused
from cdr_core.metadata import Phase, PhaseState, RecoveryOptions, RecoverySettings, RecoveryState, Repository
from cdr_core.metadata.models import RecoveryRow
from tests.metadata.steps import finish, new_recovery


def test_a_new_recovery_is_stored_as_asked(repository: Repository) -> None:
    new = new_recovery()
    recovery, created = repository.create_recovery(new)
    assert created
    assert re.fullmatch(r"r-[0-9a-f]{10}", recovery.id)
    assert recovery == repository.recovery(recovery.id)
    assert (recovery.source.uri, recovery.source.flink_checkpoint_id) == ("/checkpoints/chk-7", 7)
    assert (recovery.spec, recovery.spec_sha256) == ("job: x", new.spec_sha256)
    assert recovery.options == RecoveryOptions(on_corrupt="fail")
    assert recovery.settings == RecoverySettings(checkpoint_interval="10s")
    assert (recovery.state, recovery.epoch, recovery.host_id) == (RecoveryState.CREATED, 0, "host-1")
    assert recovery.created_at.tzinfo is not None
    phases = repository.phases(recovery.id)
    assert [(phase.name, phase.state) for phase in phases] == [(phase, PhaseState.PENDING) for phase in Phase]
    assert all(phase.units_total is None for phase in phases)


def test_the_same_again_attaches_and_keeps_what_was_first(repository: Repository) -> None:
    first, _ = repository.create_recovery(new_recovery())
    again, created = repository.create_recovery(
        new_recovery(workspace="/elsewhere", settings=RecoverySettings(), source="/copy")
    )
    assert not created
    assert again == first


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"spec": "job: y"}, "spec"),
        ({"parallelism": "3"}, "parallelism 2, not 3"),
        ({"options": RecoveryOptions(on_corrupt="quarantine")}, "fail.*not.*quarantine"),
    ],
)
def test_another_result_for_the_same_identity_is_refused_with_both_values(
    repository: Repository, changes: dict[str, object], names: str
) -> None:
    first, _ = repository.create_recovery(new_recovery())
    with pytest.raises(Refused, match=names) as refusal:
        repository.create_recovery(new_recovery(**changes))
    assert first.id in str(refusal.value)
    if "spec" in changes:
        assert new_recovery().spec_sha256 in str(refusal.value)
        assert new_recovery(**changes).spec_sha256 in str(refusal.value)


def test_the_order_of_options_does_not_matter(repository: Repository) -> None:
    options = RecoveryOptions(on_corrupt="fail", drain_order=("a", "b"))
    first, _ = repository.create_recovery(new_recovery(options=options))
    stored = {"drain_order": ["a", "b"], "on_corrupt": "fail"}
    with repository._database.write() as session:
        session.execute(update(RecoveryRow).where(RecoveryRow.id == first.id).values(options=stored))
    assert not repository.create_recovery(new_recovery(options=options))[1]
    with pytest.raises(Refused, match="options"):
        repository.create_recovery(new_recovery(options=RecoveryOptions(on_corrupt="fail", drain_order=("b", "a"))))


def test_another_target_or_another_checkpoint_is_another_recovery(repository: Repository) -> None:
    ids = {
        repository.create_recovery(new)[0].id
        for new in (new_recovery(), new_recovery(target="parquet:/b"), new_recovery(metadata_sha256="cd" * 32))
    }
    assert len(ids) == 3


def test_none_is_never_unique(repository: Repository) -> None:
    ids = {repository.create_recovery(new_recovery(target="none:"))[0].id for _ in range(3)}
    assert len(ids) == 3


def test_a_cancelled_recovery_is_not_attached_to(repository: Repository) -> None:
    recovery, _ = repository.create_recovery(new_recovery())
    repository.cancel(recovery.id)
    with pytest.raises(Refused, match=r"was cancelled; start over with --replace, or choose another target"):
        repository.create_recovery(new_recovery())


def test_a_finished_recovery_is_attached_to(repository: Repository) -> None:
    recovery, _ = repository.create_recovery(new_recovery())
    for phase in Phase:
        finish(repository, recovery.id, phase)
    again, created = repository.create_recovery(new_recovery())
    assert (again.id, again.state, created) == (recovery.id, RecoveryState.DONE, False)


def test_the_source_is_pinned_until_its_last_recovery_ends(repository: Repository) -> None:
    done, _ = repository.create_recovery(new_recovery())
    cancelled, _ = repository.create_recovery(new_recovery(target="parquet:/b"))
    for phase in Phase:
        assert repository.sources(pinned=True)
        finish(repository, done.id, phase)
    assert [source.uri for source in repository.sources(pinned=True)] == ["/checkpoints/chk-7"]
    repository.cancel(cancelled.id)
    assert repository.sources(pinned=True) == ()
    assert len(repository.sources(pinned=False)) == len(repository.sources()) == 1
    repository.create_recovery(new_recovery(target="parquet:/c"))
    assert repository.sources(pinned=True)


def test_of_many_who_create_at_once_one_does(repository: Repository) -> None:
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda _: repository.create_recovery(new_recovery()), range(48)))
    assert len({recovery.id for recovery, _ in answers}) == 1
    assert sum(created for _, created in answers) == 1
    assert len(repository.recoveries()) == 1
    assert len(repository.phases(answers[0][0].id)) == len(Phase)


def test_lists_are_pages_and_can_be_of_one_state(repository: Repository) -> None:
    ids = [repository.create_recovery(new_recovery(target=f"parquet:/{n}"))[0].id for n in range(5)]
    repository.cancel(ids[2])
    assert {recovery.id for recovery in repository.recoveries()} == set(ids)
    pages = [repository.recoveries(limit=2, offset=offset) for offset in (0, 2, 4)]
    assert sorted(recovery.id for page in pages for recovery in page) == sorted(ids)
    assert [recovery.id for recovery in repository.recoveries(state=RecoveryState.CANCELLED)] == [ids[2]]


def test_an_unknown_recovery_is_refused_with_a_way_to_find_the_known_ones(repository: Repository) -> None:
    with pytest.raises(Refused, match=r"there is no recovery r-0; run: cdr list"):
        repository.recovery("r-0")
    with pytest.raises(Refused, match="there is no recovery"):
        repository.prepared("r-0")
    with pytest.raises(Refused, match="there is no recovery"):
        repository.request("r-0", "checkpoint", {})
