"""Whole drills on a shipped checkpoint: each result once, and nothing left behind by any of them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cdr_core.drill import checks
from cdr_core.drill.drill_id import drill_id_of
from cdr_core.drill.finish import end
from cdr_core.drill.start import DrillRequest, begin, has_newer
from cdr_core.errors import Refused, StorageError
from cdr_core.metadata import Drill, DrillArgs, DrillChecks, DrillOutcome, Phase, RecoveryState
from cdr_core.recovery.recovery_request import RecoveryRequest, create_in
from cdr_core.runtime.driver import PhaseRun
from cdr_core.runtime.executor_backend import share_of_cluster
from cdr_core.runtime.phase_command import own_runner
from tests.drill.conftest import Rehearsal
from tests.support.inline import InlineWorkers, run_all


def results(drill: Drill) -> Mapping[str, str]:
    return {check.name: check.result for check in drill.checks}


def sentence(drill: Drill, name: str) -> str:
    return next(check.sentence for check in drill.checks if check.name == name)


def test_a_drill_that_passes_leaves_its_history_and_nothing_else(rehearsal: Rehearsal) -> None:
    drill = rehearsal.drill(rehearsal.plan(rto="1h", max_age="36500d", checks={"verify": True}))
    assert drill.result is DrillOutcome.PASSED, drill.checks
    assert set(results(drill).values()) == {"PASSED"}
    assert set(results(drill)) == {"recovered", "balanced", "rows", "verify", "rto", "rpo"}
    assert "1,878 rows" in sentence(drill, "rows")
    assert drill.rto_s is not None
    assert drill.rpo_s is not None
    assert drill.args.job == "lab-a"
    assert (drill.args.rto_limit_s, drill.args.choice) == (3600, "latest")
    assert drill.args.seed is not None
    assert drill.recovery_id is not None
    assert rehearsal.repository.recovery(drill.recovery_id).state is RecoveryState.DONE
    assert rehearsal.repository.receipt(drill.recovery_id) is not None
    assert rehearsal.left() == []
    assert not list(Path(rehearsal.settings.drill_scratch).iterdir())


def test_a_drill_where_nobody_looks_at_rows_writes_none(rehearsal: Rehearsal) -> None:
    drill = rehearsal.drill(rehearsal.plan(checks={"rows": False}))
    assert drill.result is DrillOutcome.PASSED
    assert drill.args.target == "none:"
    assert "rows" not in results(drill)


def test_a_corrupt_checkpoint_fails_the_drill(rehearsal: Rehearsal, damage: Callable[[], None]) -> None:
    damage()
    drill = rehearsal.drill()
    assert drill.result is DrillOutcome.FAILED
    assert results(drill)["recovered"] == "FAILED"
    assert results(drill)["rows"] == "NOT_RUN"
    check = next(check for check in drill.checks if check.name == "recovered")
    assert "quarantine" in check.do
    assert drill.error is not None
    assert drill.error.startswith("recovered: ")
    assert rehearsal.left() == []
    assert (
        drill.recovery_id is None or rehearsal.repository.recovery(drill.recovery_id).state is RecoveryState.CANCELLED
    )


def test_a_spec_that_no_longer_fits_the_job_fails_the_drill(rehearsal: Rehearsal) -> None:
    drill = rehearsal.drill(rehearsal.plan(spec=rehearsal.spec.replace("operator: slow", "operator: gone")))
    assert drill.result is DrillOutcome.FAILED
    assert "gone" in sentence(drill, "recovered")
    assert drill.recovery_id is None


def test_a_recovery_that_takes_too_long_is_timed_out(rehearsal: Rehearsal) -> None:
    drill = rehearsal.drill(rehearsal.plan(rto="1ms"))
    assert drill.result is DrillOutcome.TIMED_OUT
    assert results(drill)["rto"] == "FAILED"
    assert results(drill)["recovered"] == "PASSED"


def test_a_checkpoint_that_is_too_old_fails_although_it_can_be_recovered(rehearsal: Rehearsal) -> None:
    drill = rehearsal.drill(rehearsal.plan(max_age="1ms"))
    assert drill.result is DrillOutcome.FAILED
    assert (results(drill)["rpo"], results(drill)["recovered"]) == ("FAILED", "PASSED")


@pytest.mark.parametrize("fields", [{"checkpoints": "/none"}, {"spec": "/no/spec.yaml"}])
def test_without_a_checkpoint_or_a_spec_it_could_not_run(rehearsal: Rehearsal, fields: dict[str, str]) -> None:
    drill = rehearsal.drill(rehearsal.plan(**fields))
    assert drill.result is DrillOutcome.COULD_NOT_RUN
    assert (drill.rto_s, drill.rpo_s, drill.recovery_id) == (None, None, None)
    assert drill.error is not None
    assert next(iter(fields.values())) in drill.error
    assert rehearsal.repository.drills() == (drill,)


class Failing(InlineWorkers):
    """Workers that a storage fails in one phase."""

    def __init__(self, phase: Phase, error: Exception) -> None:
        super().__init__()
        self._phase, self._error = phase, error

    def run(self, drive: PhaseRun, payload: str, units: Sequence[str], on_poll: Callable[[], None]) -> None:
        if drive.phase is self._phase:
            raise self._error
        super().run(drive, payload, units, on_poll)


def test_what_is_not_the_checkpoints_fault_says_nothing_about_it(rehearsal: Rehearsal) -> None:
    drill = rehearsal.drill(workers=Failing(Phase.DRAIN, StorageError("the disk is away")))
    assert drill.result is DrillOutcome.COULD_NOT_RUN
    assert "the disk is away" in sentence(drill, "recovered")
    assert rehearsal.left() == []


def test_a_checkpoint_that_flink_removes_meanwhile_is_not_called_corrupt(rehearsal: Rehearsal) -> None:
    class Removing(InlineWorkers):
        def start(self, drive: PhaseRun) -> None:
            shutil.rmtree(rehearsal.checkpoint, ignore_errors=True)

    drill = rehearsal.drill(workers=Removing())
    assert drill.result is DrillOutcome.COULD_NOT_RUN
    assert "was removed while it was drilled" in sentence(drill, "recovered")


def test_ctrl_c_ends_the_drill_and_removes_its_scratch(rehearsal: Rehearsal) -> None:
    with pytest.raises(KeyboardInterrupt):
        rehearsal.drill(workers=Failing(Phase.COMMIT, KeyboardInterrupt()))  # type: ignore[arg-type]
    (drill,) = rehearsal.repository.drills()
    assert drill.result is DrillOutcome.COULD_NOT_RUN
    assert "interrupted" in sentence(drill, "recovered")
    assert rehearsal.left() == []


def test_a_drill_that_hangs_is_given_up_as_timed_out(rehearsal: Rehearsal) -> None:
    drill = rehearsal.drill(rehearsal.plan(give_up="1ms"))
    assert drill.result is DrillOutcome.TIMED_OUT
    assert results(drill)["rto"] == "FAILED"


def test_where_the_last_try_was_lost_the_one_before_it_says_why(rehearsal: Rehearsal) -> None:
    asked = DrillRequest(drill_id_of("dag/run"), run="dag/run")
    drill = begin(rehearsal.repository, rehearsal.settings, rehearsal.plan(), asked)
    assert drill is not None
    assert drill.recovery_id is not None
    attempt = rehearsal.repository.begin_attempt(drill.recovery_id, Phase.READ, own_runner("read"))
    assert attempt is not None
    with rehearsal.repository.fenced(drill.recovery_id, attempt.epoch) as transaction:
        transaction.fail_attempt("the disk is full.")
    assert rehearsal.repository.begin_attempt(drill.recovery_id, Phase.READ, own_runner("read")) is not None
    assert rehearsal.repository.recovery(drill.recovery_id).error is None
    ended = end(rehearsal.repository, rehearsal.settings, drill.id)
    assert ended.result is DrillOutcome.COULD_NOT_RUN
    assert sentence(ended, "recovered") == "the disk is full."


def test_a_drill_never_meets_a_recovery_in_earnest(rehearsal: Rehearsal, tmp_path: Path) -> None:
    target = f"parquet:{tmp_path / 'production'}"
    request = RecoveryRequest(str(rehearsal.checkpoint), rehearsal.spec, "2", target)
    recovery, _ = create_in(rehearsal.repository, request, rehearsal.settings)
    run_all(rehearsal.repository, recovery.id, rehearsal.settings)
    before = {path: path.read_bytes() for path in (tmp_path / "production").rglob("*") if path.is_file()}
    drills = [rehearsal.drill(), rehearsal.drill()]
    assert len({recovery.id, *(drill.recovery_id for drill in drills)}) == 3
    assert {path: path.read_bytes() for path in (tmp_path / "production").rglob("*") if path.is_file()} == before
    assert rehearsal.repository.recovery(recovery.id).state is RecoveryState.DONE


def test_the_source_checkpoint_is_not_changed(rehearsal: Rehearsal) -> None:
    before = {path.name: path.read_bytes() for path in rehearsal.checkpoint.iterdir()}
    rehearsal.drill()
    assert {path.name: path.read_bytes() for path in rehearsal.checkpoint.iterdir()} == before


def test_rows_that_are_missing_are_noticed(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself must be able to fail: here the target shows one file less than was published."""
    real = checks.published_files
    monkeypatch.setattr(checks, "published_files", lambda target: list(real(target))[1:])
    drill = rehearsal.drill()
    assert drill.result is DrillOutcome.FAILED
    assert results(drill)["rows"] == "FAILED"


# --- tries, verdicts, news -------------------------------------------------------------------------------------------


def test_every_try_of_a_run_is_the_same_drill_on_the_same_checkpoint(
    rehearsal: Rehearsal, another: Callable[[int], Path]
) -> None:
    asked = DrillRequest(drill_id_of("dag/run"), run="dag/run")
    first = begin(rehearsal.repository, rehearsal.settings, rehearsal.plan(), asked)
    another(3)
    again = begin(rehearsal.repository, rehearsal.settings, rehearsal.plan(), asked)
    assert first is not None
    assert first == again
    ended = end(rehearsal.repository, rehearsal.settings, asked.id)
    assert ended.result is DrillOutcome.COULD_NOT_RUN
    assert end(rehearsal.repository, rehearsal.settings, asked.id) == ended, "a result does not change"
    with pytest.raises(Refused, match="ended COULD_NOT_RUN and a result does not change"):
        begin(rehearsal.repository, rehearsal.settings, rehearsal.plan(), asked)


def test_on_a_new_checkpoint_means_once_for_each(rehearsal: Rehearsal, another: Callable[[int], Path]) -> None:
    plan = rehearsal.plan(schedule={"new_checkpoint": "5m"})

    def poll(run: str) -> Drill | None:
        asked = DrillRequest(drill_id_of(run), run=run, only_newer=True)
        return begin(rehearsal.repository, rehearsal.settings, plan, asked)

    assert has_newer(rehearsal.repository, plan)
    first = poll("1")
    assert first is not None
    assert not has_newer(rehearsal.repository, plan)
    assert poll("2") is None
    again = poll("1")
    assert again is not None, "a retry of the run that began it goes on"
    newer = another(5)
    newer.joinpath("_metadata").touch()
    found = poll("3")
    assert found is not None
    assert found.checkpoint == str(newer)


# --- a Flink that restores -----------------------------------------------------------------------------------------


def flink_drill(rehearsal: Rehearsal) -> Drill:
    wanted = DrillChecks(rows=False, flink_restore=True)
    args = DrillArgs(target=f"checkpoint:{rehearsal.checkpoint}", give_up_s=60.0, checks=wanted)
    return Drill("d-0", "/", args, None, datetime.now(UTC), None, (), None, None, None, None)


SCRIPT = "import pathlib,sys; sys.exit(0 if (pathlib.Path(sys.argv[1])/'_metadata').exists() else 'no metadata')"


@pytest.mark.parametrize(
    ("command", "result", "said"),
    [
        ("", "NOT_CONFIGURED", "No Flink is configured"),
        (f'{sys.executable} -c "{SCRIPT}"', "PASSED", "ended with 0"),
        (
            f"{sys.executable} -c \"print('restoring'); import sys; sys.exit('no such state')\"",
            "FAILED",
            "ended with 1",
        ),
        ("/no/such/flink restore", "NOT_RUN", "could not be started"),
    ],
)
def test_the_configured_command_decides_whether_flink_takes_it(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch, command: str, result: str, said: str
) -> None:
    monkeypatch.setenv("CDR_DRILL_FLINK", command)
    (check,) = checks.look(flink_drill(rehearsal), {}, rehearsal.settings)
    assert (check.name, str(check.result)) == ("flink_restore", result)
    assert said in check.sentence


def test_without_a_flink_the_rest_of_the_drill_decides(rehearsal: Rehearsal) -> None:
    drill = rehearsal.drill(rehearsal.plan(checks={"flink_restore": True}))
    assert drill.result is DrillOutcome.PASSED
    assert results(drill)["flink_restore"] == "NOT_CONFIGURED"


def test_a_drill_takes_a_share_of_the_cores(rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    from cdr_core.drill import resource_limits

    def shared(**environment: str) -> tuple[int, str]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return resource_limits.cores(rehearsal.settings, host_cores=8), resource_limits.bounded(
            rehearsal.settings
        ).spark

    assert shared() == (4, "connect")
    assert resource_limits.cores(rehearsal.settings, host_cores=1) == 1
    assert shared(CDR_DRILL_CORES="3", CDR_SPARK="local[*,4]") == (3, "local[3,4]")
    assert shared(CDR_SPARK_CORES="2", CDR_SPARK="spark://host:7077") == (2, "spark://host:7077")
    assert resource_limits.environment(rehearsal.settings) == {"CDR_SPARK_CORES": "2", "CDR_SPARK": "spark://host:7077"}
    assert share_of_cluster(resource_limits.bounded(rehearsal.settings)) == {"spark.cores.max": "2"}
