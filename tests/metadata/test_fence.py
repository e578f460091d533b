"""The fence: the first statement of every transaction, and nothing of a stale attempt gets past it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from sqlalchemy import event

from cdr_core.errors import Fenced
from cdr_core.metadata import (
    Attempt,
    AttemptState,
    CommandState,
    FencedTransaction,
    Phase,
    PlanSummary,
    RecoveryState,
    Repository,
    UnitProgress,
)
from tests.metadata.steps import PROOF, PROOF_SHA256, USER, begin, new_recovery, prepared, reach

WRITES: dict[str, Callable[[FencedTransaction], object]] = {
    "nothing": lambda transaction: None,
    "save_plan": lambda transaction: transaction.save_plan("hash", "/plan", PlanSummary()),
    "set_server": lambda transaction: transaction.set_server({"pid": 1}),
    "set_total": lambda transaction: transaction.set_total(Phase.DRAIN, 1, 1),
    "set_running": lambda transaction: transaction.set_running(Phase.DRAIN, {"u": UnitProgress(1, 1)}),
    "record_unit": lambda transaction: transaction.record_unit(Phase.DRAIN, "u", "/u", 1, 1, {}),
    "forget_units": lambda transaction: transaction.forget_units(Phase.SPILL, ["only"]),
    "redo_unit": lambda transaction: transaction.redo_unit(Phase.SPILL, "only", "/u", 1, 10, {}),
    "add_ledger": lambda transaction: transaction.add_ledger(Phase.DRAIN, [{}]),
    "finish_phase": lambda transaction: transaction.finish_phase(Phase.DRAIN, {}),
    "finish_recovery": lambda transaction: transaction.finish_recovery(),
    "fail_attempt": lambda transaction: transaction.fail_attempt("error"),
    "cancel_recovery": lambda transaction: transaction.cancel_recovery(),
    "seal_spill_set": lambda transaction: transaction.seal_spill_set(0, "/m", None, [], 0),
    "acquire_grant": lambda transaction: transaction.acquire_grant(1, "me"),
    "release_grant": lambda transaction: transaction.release_grant(1, "me"),
    "begin_checkpoint": lambda transaction: transaction.begin_checkpoint(1),
    "complete_checkpoint": lambda transaction: transaction.complete_checkpoint(1, "/m", "aa"),
    "abort_checkpoint": lambda transaction: transaction.abort_checkpoint(1, "no"),
    "subsume_checkpoint": lambda transaction: transaction.subsume_checkpoint(1, "no"),
    "forget_prepared": lambda transaction: transaction.forget_prepared([1]),
    "forget_prepared_before": lambda transaction: transaction.forget_prepared_before(2),
    "expire_checkpoint": lambda transaction: transaction.expire_checkpoint(1, "no"),
    "add_prepared": lambda transaction: transaction.add_prepared(prepared(0, 1)),
    "reset_subtask": lambda transaction: transaction.reset_subtask(0, 0),
    "save_coordinator_state": lambda transaction: transaction.save_coordinator_state(USER, {}),
    "intend": lambda transaction: transaction.intend(USER, 1, None, PROOF_SHA256, PROOF),
    "published": lambda transaction: transaction.published(USER, 1, "/t", None),
    "commit_done": lambda transaction: transaction.commit_done(USER, 1),
    "save_receipt": lambda transaction: transaction.save_receipt({}),
    "refuse_overdue": lambda transaction: transaction.refuse_overdue(0.0),
    "take_commands": lambda transaction: transaction.take_commands(),
    "answer_command": lambda transaction: transaction.answer_command(1, CommandState.DONE, {}),
}


def test_every_method_of_the_transaction_is_tried_below() -> None:
    methods = {name for name in dir(FencedTransaction) if not name.startswith("_")}
    assert set(WRITES) == methods | {"nothing"}


def write_fenced(repository: Repository, attempt: Attempt, write: Callable[[FencedTransaction], object]) -> None:
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        write(transaction)


@pytest.fixture
def statements(repository: Repository) -> list[str]:
    seen: list[str] = []
    # The writers' engine is the readers' with another option: it reports to the same listeners.
    event.listen(repository._database._readers, "before_cursor_execute", lambda *called: seen.append(called[2]))
    return seen


def test_a_stale_attempt_is_stopped_by_its_first_statement(repository: Repository, statements: list[str]) -> None:
    stale = reach(repository, Phase.DRAIN)
    begin(repository, stale.recovery_id, Phase.DRAIN)
    before = repository.recovery(stale.recovery_id)
    for write in WRITES.values():
        statements.clear()
        with pytest.raises(Fenced, match=f"epoch {stale.epoch} of recovery {stale.recovery_id} is over"):
            write_fenced(repository, stale, write)
        writes = [statement for statement in statements if not statement.startswith(("BEGIN", "SELECT"))]
        assert len(writes) == 1
    assert repository.recovery(stale.recovery_id) == before


def test_the_fence_is_one_update_of_the_recovery_with_its_epoch(repository: Repository, statements: list[str]) -> None:
    attempt = reach(repository, Phase.READ)
    statements.clear()
    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        transaction.set_total(Phase.READ, 1, 1)
    first = next(statement for statement in statements if not statement.startswith("BEGIN"))
    assert first.startswith("UPDATE recovery SET")
    assert "WHERE recovery.id = " in first
    assert "AND recovery.epoch = " in first


def test_an_epoch_of_the_future_and_an_unknown_recovery_are_fenced_too(repository: Repository) -> None:
    attempt = reach(repository, Phase.READ)
    with pytest.raises(Fenced), repository.fenced(attempt.recovery_id, attempt.epoch + 1):
        pytest.fail("got past the fence")
    with pytest.raises(Fenced), repository.fenced("r-0", 1):
        pytest.fail("got past the fence")


def test_an_error_inside_rolls_everything_back(repository: Repository) -> None:
    attempt = reach(repository, Phase.READ)

    def write_and_fail(transaction: FencedTransaction) -> None:
        transaction.set_total(Phase.READ, 1, 1)
        transaction.record_unit(Phase.READ, "a", "/a", 1, 1, {})
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        write_fenced(repository, attempt, write_and_fail)
    assert repository.units(attempt.recovery_id, Phase.READ) == ()
    assert repository.phases(attempt.recovery_id)[0].units_total is None


def test_epochs_of_two_recoveries_are_independent(repository: Repository) -> None:
    one = reach(repository, Phase.READ)
    other, _ = repository.create_recovery(new_recovery(target="parquet:/other"))
    for _ in range(3):
        begin(repository, other.id, Phase.READ)
    with repository.fenced(one.recovery_id, one.epoch) as transaction:
        transaction.set_total(Phase.READ, 1, 1)
    assert repository.phases(one.recovery_id)[0].units_total == 1


def test_a_new_attempt_waits_for_a_transaction_that_passed_the_fence(repository: Repository) -> None:
    """The other order of the race: who is inside finishes, and the newcomer sees what was written."""
    attempt = reach(repository, Phase.READ)
    began = threading.Event()
    order: list[str] = []

    def take_over() -> None:
        began.set()
        begin(repository, attempt.recovery_id, Phase.READ)
        order.append("taken over")

    with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
        thread = threading.Thread(target=take_over)
        thread.start()
        began.wait()
        time.sleep(0.3)
        transaction.record_unit(Phase.READ, "a", "/a", 1, 1, {})
        order.append("written")
    thread.join()
    assert order == ["written", "taken over"]
    assert len(repository.units(attempt.recovery_id, Phase.READ)) == 1
    with pytest.raises(Fenced), repository.fenced(attempt.recovery_id, attempt.epoch):
        pytest.fail("got past the fence")


def test_a_forced_cancel_fences_the_zombie(repository: Repository) -> None:
    attempt = reach(repository, Phase.FILTER)
    repository.cancel(attempt.recovery_id, force=True)
    with pytest.raises(Fenced, match="CANCELLED"), repository.fenced(attempt.recovery_id, attempt.epoch):
        pytest.fail("got past the fence")
    assert repository.recovery(attempt.recovery_id).state is RecoveryState.CANCELLED
    assert repository.attempts(attempt.recovery_id)[-1].state is AttemptState.FENCED
