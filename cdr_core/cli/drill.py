"""``cdr drill``: run a restore drill now, and show the results of earlier ones."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from cdr_core.cli.common import JsonFlag, load_settings, open_repository, print_json

if TYPE_CHECKING:
    from cdr_core.drill.plan import DrillPlan
    from cdr_core.settings import Settings

app = typer.Typer(help="Restore drills: recoveries that are rehearsed, judged and removed.", no_args_is_help=True)


@app.command("run")
def run(
    plan: Annotated[str, typer.Argument(metavar="[PLAN]", help="A plan of the drills' file; options change it.")] = "",
    checkpoints: Annotated[str, typer.Option(help="A checkpoint, or the directory that holds a job's.")] = "",
    spec: Annotated[str, typer.Option(help="The job spec: a YAML file.")] = "",
    parallelism: Annotated[str, typer.Option(help="2, slow=2,gen=3 or same.")] = "",
    choose: Annotated[str, typer.Option(help="latest, or: random within 7d.")] = "",
    seed: Annotated[int | None, typer.Option(min=0, help="Repeats a random choice.")] = None,
    rto: Annotated[str, typer.Option(help="How long the recovery may take, such as 10m.")] = "",
    max_age: Annotated[str, typer.Option(help="How old the checkpoint may be, such as 1h.")] = "",
    verify: Annotated[bool, typer.Option("--verify", help="Also compare with the independent reader.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Run one restore drill here: choose a checkpoint, recover it to a scratch place, check, remove, judge.

    Exit status: 0 = PASSED, 1 = TIMED_OUT, 2 = FAILED, 3 = COULD_NOT_RUN.
    """
    from cdr_core.cli.progress import PhaseBars
    from cdr_core.drill import resource_limits
    from cdr_core.drill.drill_view import EXIT_CODES, as_text
    from cdr_core.drill.drill_view import as_json as value_of
    from cdr_core.drill.run import by_this_process, run_drill
    from cdr_core.runtime.executor_backend import SparkWorkers

    settings = load_settings()
    given = {"checkpoints": checkpoints, "spec": spec, "parallelism": parallelism, "choose": choose}
    chosen = overridden_plan(settings, plan, {**given, "rto": rto, "max_age": max_age}, verify=verify)
    with (
        open_repository(settings) as repository,
        SparkWorkers(resource_limits.bounded(settings)) as workers,
        PhaseBars() as bars,
    ):
        drill = run_drill(repository, settings, chosen, by_this_process(seed), workers, bars)
    print_json(value_of(drill)) if as_json else typer.echo(as_text(drill))
    assert drill.result is not None, "a drill that was run has a result"
    raise typer.Exit(EXIT_CODES[drill.result])


@app.command("list")
def list_drills(
    plan: Annotated[str, typer.Option(help="Only those of this plan.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many, newest first.")] = 50,
    stale: Annotated[bool, typer.Option("--stale", help="Exit status 1 if a plan's last success is too old.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the history, newest first, and the age of the last success of each plan in the drills' file."""
    from cdr_core.drill.drill_view import as_json as value_of
    from cdr_core.drill.drill_view import as_line
    from cdr_core.drill.history import plan_statuses
    from cdr_core.drill.plans import load_plans

    settings = load_settings()
    with open_repository(settings) as repository:
        found = repository.drills(limit, plan=plan or None)
        states = plan_statuses(load_plans(settings.drills), repository.newest_drills(), datetime.now(UTC))
    states = tuple(state for state in states if not plan or state.plan == plan)
    for drill in found:
        print_json(value_of(drill)) if as_json else typer.echo(as_line(drill))
    if not as_json:
        if not found:
            typer.echo("no drills yet")
        for state in states:
            typer.echo(state.sentence)
            if state.refusal:
                typer.echo(f"refused: {state.refusal}", err=True)
    if stale and any(state.is_stale for state in states):
        raise typer.Exit(1)


@app.command("show")
def show(
    drill: Annotated[str, typer.Argument(metavar="DRILL", help="Id of the drill.")], as_json: JsonFlag = False
) -> None:
    """Show one drill: every check with its result, the meaning of a failure and the next step."""
    from cdr_core.drill.drill_view import as_json as value_of
    from cdr_core.drill.drill_view import as_text

    with open_repository(load_settings()) as repository:
        found = repository.drill(drill)
    print_json(value_of(found)) if as_json else typer.echo(as_text(found))


@app.command("plans")
def plans(as_json: JsonFlag = False) -> None:
    """List the plans in the drills' file; exit status 3 if one of them cannot be used."""
    from cdr_core.drill.plans import load_plans

    settings = load_settings()
    found = load_plans(settings.drills)
    for plan in found.plans:
        if as_json:
            print_json(
                {
                    "plan": plan.name,
                    "job": plan.job or None,
                    "checkpoints": plan.checkpoints,
                    "schedule": plan.schedule.text,
                    "choice": plan.choice.text,
                    "parallelism": plan.parallelism,
                    "rto_limit_s": plan.rto_s,
                    "rpo_limit_s": plan.max_age_s,
                }
            )
        else:
            typer.echo(f"{plan.name:<24}  {plan.schedule.text:<20}  {plan.choice.text:<20}  {plan.checkpoints}")
    for name, sentence in found.refusals:
        print_json({"plan": name, "error": sentence}) if as_json else typer.echo(f"refused: {sentence}", err=True)
    if not as_json and not found.plans and not found.refusals:
        typer.echo(f"no plans: {settings.drills} does not exist or is empty")
    if found.refusals:
        raise typer.Exit(3)


def overridden_plan(settings: Settings, name: str, given: dict[str, str], *, verify: bool = False) -> DrillPlan:
    """Return the plan of this name, overridden by the given options; without a name, the options are the plan."""
    from cdr_core.drill.plan_overrides import with_wishes
    from cdr_core.drill.plans import load_plans

    base = load_plans(settings.drills).get(name) if name else None
    plan = with_wishes(base, given)
    return replace(plan, checks=msgspec.structs.replace(plan.checks, verify=plan.checks.verify or verify))
