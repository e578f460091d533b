"""Everything that Airflow, its users and the machine can do to a run, each against a real Airflow.

``make test-airflow`` runs it; ``test_live.py`` holds the short set that every change has to pass. A phase is caught in
the middle by a file that its units wait for, never by luck, and each case ends with the same judge. Tries are counted
from below: on a busy machine Airflow may lose patience with a task on its own account, which is one more case.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from cdr_airflow.embedded import services
from cdr_core.metadata import AttemptState, Phase
from tests.airflow.judge import Rows, assert_attempts_are_in_order, assert_right, expected_rows
from tests.airflow.live import Live, Run, wait_for
from tests.support.checkpoints import FixtureCheckpoints

pytestmark = [
    pytest.mark.timeout(2400),
    pytest.mark.soak,
]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    instance = Live.make(tmp_path_factory.mktemp("faults"))
    with instance.guarded():
        up = instance.command("up", "--port", "0")
        assert up.returncode == 0, up.stderr
        yield instance


@pytest.fixture(scope="module")
def expected(fixture_checkpoint: FixtureCheckpoints) -> Rows:
    return expected_rows(fixture_checkpoint)


def attempts_of(run: Run, phase: Phase) -> list[AttemptState]:
    with run.live.repository() as repository:
        return [attempt.state for attempt in repository.attempts(run.recovery) if attempt.phase is phase]


def test_every_task_fails_once_and_is_retried(live: Live, expected: Rows) -> None:
    for phase in Phase:
        live.fail_once(phase)
    run = Run.trigger(live, "retried")
    assert run.wait_until_over() == "success"
    for phase in Phase:
        assert run.task(phase)["try_number"] >= 2
        assert AttemptState.FAILED in attempts_of(run, phase)
    assert_right(run, expected)


def test_every_task_is_killed_once(live: Live, expected: Rows) -> None:
    def kill_task(run: Run, phase: Phase) -> None:
        os.kill(run.wait_for_task(phase, "running")["pid"], signal.SIGKILL)

    run = run_struck_in_every_phase(live, "killed-tasks", kill_task)
    for phase in Phase:
        assert run.task(phase)["try_number"] >= 2
        assert AttemptState.FENCED in attempts_of(run, phase)
    assert_right(run, expected)


def test_every_driver_is_killed_once(live: Live, expected: Rows) -> None:
    def kill_driver(run: Run, phase: Phase) -> None:
        (driver,) = run.live.drivers_of(run.recovery)
        assert phase in driver.cmdline()
        driver.kill()

    run = run_struck_in_every_phase(live, "killed-drivers", kill_driver)
    for phase in Phase:
        assert run.task(phase)["try_number"] >= 2
        assert len(attempts_of(run, phase)) >= 2
    assert_right(run, expected)


def run_struck_in_every_phase(live: Live, output: str, strike: Callable[[Run, Phase], None]) -> Run:
    """One run in which each phase is struck while a unit of it is at work."""
    with ExitStack() as held:
        pauses = {phase: held.enter_context(ExitStack()) for phase in Phase}
        caught = {phase: pause.enter_context(live.paused(phase)) for phase, pause in pauses.items()}
        run = Run.trigger(live, output)
        for phase in Phase:
            caught[phase]()
            strike(run, phase)
            pauses[phase].close()
    assert run.wait_until_over() == "success"
    return run


@pytest.mark.parametrize("phase", [Phase.READ, Phase.DRAIN, Phase.COMMIT])
def test_a_running_task_is_cleared(live: Live, expected: Rows, phase: Phase) -> None:
    with live.paused(phase) as wait_until_caught:
        run = Run.trigger(live, f"cleared-{phase}")
        wait_until_caught()
        (driver,) = wait_for("its driver", lambda: live.drivers_of(run.recovery))
        run.clear(phase)
        wait_for("the old driver's end", lambda: not driver.is_running(), 60)
    assert run.wait_until_over() == "success"
    assert len(attempts_of(run, phase)) >= 2
    assert_right(run, expected)


def test_an_earlier_task_is_cleared_while_a_later_one_runs(live: Live, expected: Rows) -> None:
    with live.paused(Phase.DRAIN) as wait_until_caught:
        run = Run.trigger(live, "cleared-earlier")
        wait_until_caught()
        run.clear("filter", "spill", "drain", "commit")
        run.wait_for_task("spill", "success")
    assert run.wait_until_over() == "success"
    assert "is done already" in run.log("filter", 2)
    assert attempts_of(run, Phase.FILTER) == [AttemptState.DONE]
    assert_right(run, expected)


def test_the_first_task_alone_is_cleared_while_a_later_one_runs(live: Live, expected: Rows) -> None:
    with live.paused(Phase.DRAIN) as wait_until_caught:
        run = Run.trigger(live, "cleared-first")
        wait_until_caught()
        run.clear("read")
        wait_for("read to run again", lambda: run.task("read")["try_number"] == 2)
        run.wait_for_task("read", "success")
    assert run.wait_until_over() == "success"
    assert attempts_of(run, Phase.DRAIN) == [AttemptState.DONE], "who is at work is not disturbed"
    assert_right(run, expected)


def test_all_tasks_of_a_finished_run_are_cleared(live: Live, expected: Rows) -> None:
    run = Run.trigger(live, "finished")
    assert run.wait_until_over() == "success"
    run.clear(*Phase)
    wait_for("commit to run again", lambda: run.task("commit")["try_number"] == 2)
    assert run.wait_until_over() == "success"
    assert [attempts_of(run, phase) for phase in Phase] == [[AttemptState.DONE]] * len(Phase)
    assert_right(run, expected)


@pytest.mark.parametrize("phase", [Phase.READ, Phase.COMMIT])
def test_a_task_is_marked_failed_and_cleared_later(live: Live, expected: Rows, phase: Phase) -> None:
    with live.paused(phase) as wait_until_caught:
        run = Run.trigger(live, f"marked-failed-{phase}")
        wait_until_caught()
        run.mark(phase, "failed")
        wait_for("the driver's end", lambda: not live.drivers_of(run.recovery), 60)
        assert run.wait_until_over() == "failed"
        assert not (run.output / "_cdr").exists()
    resume(run, phase)
    assert_right(run, expected)


def test_a_running_task_is_marked_successful_and_cleared_later(live: Live, expected: Rows) -> None:
    with live.paused(Phase.FILTER) as wait_until_caught:
        run = Run.trigger(live, "marked-successful")
        wait_until_caught()
        run.mark("filter", "success")
        assert run.wait_until_over() == "failed"
    assert "phase spill cannot start: filter is not done" in run.log("spill")
    assert not (run.output / "_cdr").exists()
    resume(run, Phase.FILTER)
    assert_right(run, expected)


def resume(run: Run, since: Phase) -> None:
    run.clear(*[phase for phase in Phase if list(Phase).index(phase) >= list(Phase).index(since)])
    wait_for("the run to go on", lambda: run.live.client.run_state(run.id) != "failed")
    assert run.wait_until_over() == "success"


def test_the_scheduler_alone_is_killed_and_comes_back(live: Live, expected: Rows) -> None:
    with live.paused(Phase.DRAIN) as wait_until_caught:
        run = Run.trigger(live, "no-scheduler")
        wait_until_caught()
        scheduler = live.service(services.SCHEDULER)
        os.kill(scheduler.pid, signal.SIGKILL)
        wait_for("the scheduler's end", lambda: not scheduler.is_running)
        live.start_service(services.SCHEDULER)
    assert run.wait_until_over() == "success"
    live.end(scheduler)
    assert_right(run, expected)


def test_the_scheduler_is_killed_with_its_tasks_and_comes_back(live: Live, expected: Rows) -> None:
    with live.paused(Phase.DRAIN) as wait_until_caught:
        run = Run.trigger(live, "no-scheduler-no-tasks")
        wait_until_caught()
        live.end(live.service(services.SCHEDULER))
        wait_for("the driver's end", lambda: not live.drivers_of(run.recovery), 10)
        live.start_service(services.SCHEDULER)
    assert run.wait_until_over() == "success"
    assert AttemptState.FENCED in attempts_of(run, Phase.DRAIN)
    assert_right(run, expected)


def test_the_api_server_is_killed_and_comes_back(live: Live, expected: Rows) -> None:
    with live.paused(Phase.DRAIN) as wait_until_caught:
        run = Run.trigger(live, "no-api-server")
        wait_until_caught()
        live.end(live.service(services.API_SERVER))
        live.start_service(services.API_SERVER)
    assert run.wait_until_over() == "success"
    assert_right(run, expected)


def test_two_runs_ask_for_the_same_recovery_at_once(live: Live, expected: Rows) -> None:
    one, other = Run.trigger(live, "twice"), Run.trigger(live, "twice")
    states = [one.wait_until_over(), other.wait_until_over()]
    assert one.recovery == other.recovery
    assert "success" in states
    for run, state in zip((one, other), states, strict=True):
        if state == "failed":
            # It was overtaken by the other run; cleared, it finds everything done.
            resume(run, Phase.READ)
    assert_attempts_are_in_order(live, one.recovery)
    assert_right(one, expected)
    assert_right(other, expected)
