"""The drill's DAGs: one to be triggered by hand with a form, and one per plan with the plan's own schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import pairwise
from typing import Any

from airflow.sdk import DAG, BaseOperator, Param

from cdr_airflow.drill_operators import DrillPhaseOperator, VerdictOperator
from cdr_airflow.form import (
    CHECKPOINT_PATTERN,
    DURATION_PATTERN,
    NO_EXAMPLE,
    PARALLELISM_HELP,
    PARALLELISM_PATTERN,
    SPEC_HELP,
    example,
)
from cdr_airflow.operator import FIRST_PHASE
from cdr_core import settings
from cdr_core.drill.plan import DrillPlan
from cdr_core.drill.plans import Plans, load_plans
from cdr_core.errors import CdrError

PHASES = (FIRST_PHASE, "filter", "spill", "drain", "commit")
VERDICT = "verdict"
DAG_ID = "cdr_restore_drill"
WHAT, LIMITS = "What to rehearse", "Limits"
FIELDS = ("plan", "checkpoints", "spec", "parallelism", "choose", "rto", "max_age")


def read_plans() -> Plans:
    """Return the plans in force; settings that do not load are a refusal like any other."""
    try:
        return load_plans(settings.load().drills)
    except CdrError as error:
        return Plans(refusals=(("", str(error)),))


def plan_dag_id(plan: str) -> str:
    return f"{DAG_ID}__{plan}"


def manual_dag(plans: Plans, doc: str) -> DAG:
    """Return the drill that a person triggers: a plan by its name, or everything by the form."""
    dag = _dag(DAG_ID, "Restore drill", doc, params=_params(plans))
    # No time limit of Airflow's: each task enforces the limit of the plan or the form.
    _tasks(dag, {name: f"{{{{ params.{name} or '' }}}}" for name in FIELDS}, None)
    return dag


def plan_dags(plans: Plans, doc: str) -> Iterator[tuple[str, DAG]]:
    """Yield a DAG per plan, by its id."""
    for plan in plans.plans:
        poll = timedelta(seconds=plan.schedule.poll_s) if plan.schedule.poll_s is not None else None
        dag = _dag(
            plan_dag_id(plan.name), f"Restore drill: {plan.name}", doc, schedule=plan.schedule.cron or poll, plan=plan
        )
        # A run that a user triggers is drilled even without a new checkpoint.
        only_newer = "{{ '1' if dag_run.run_type != 'manual' else '' }}" if poll is not None else ""
        _tasks(dag, {"plan": plan.name, "only_newer": only_newer}, plan.give_up_s)
        yield dag.dag_id, dag


def _dag(dag_id: str, title: str, doc: str, plan: DrillPlan | None = None, **options: Any) -> DAG:
    about = f"Rehearses the recovery of {plan.checkpoints}" if plan else "Rehearses a recovery and removes it"
    return DAG(
        dag_id,
        dag_display_name=title,
        description=about,
        doc_md=doc,
        catchup=False,
        # Concurrent drills of a plan would only delay each other.
        max_active_runs=1,
        tags=["cdr", "drill"],
        render_template_as_native_obj=False,
        default_args={
            "owner": "cdr",
            "retries": 2,
            "retry_delay": timedelta(seconds=5),
            "retry_exponential_backoff": 2.0,
            "max_retry_delay": timedelta(minutes=1),
            "pool": _pool(),
        },
        **{"schedule": None, **options},
    )


def _tasks(dag: DAG, request: Mapping[str, str], give_up_s: float | None) -> None:
    limit = None if give_up_s is None else timedelta(seconds=give_up_s)
    tasks: list[BaseOperator] = [
        DrillPhaseOperator(
            task_id=phase,
            phase=phase,
            request=request if phase == FIRST_PHASE else None,
            execution_timeout=limit,
            dag=dag,
        )
        for phase in PHASES
    ]
    verdict = VerdictOperator(task_id=VERDICT, request=request, phases=PHASES, trigger_rule="all_done", dag=dag)
    for earlier, later in pairwise([*tasks, verdict]):
        earlier >> later


def _pool() -> str:
    try:
        return settings.load().drill_pool
    except CdrError:
        return "default_pool"


def _params(plans: Plans) -> dict[str, Param]:
    names = [plan.name for plan in plans.plans]
    # If there are plans, an example would override the chosen one.
    shown = NO_EXAMPLE if names else example()
    text = ["null", "string"]
    return {
        "plan": Param(
            None,
            type=text,
            title="Plan",
            description_md="A plan of the drills' file. Fields below override the plan.",
            examples=names,
            section=WHAT,
        ),
        "checkpoints": Param(
            shown.checkpoint,
            type=text,
            title="Checkpoints",
            description_md="A checkpoint, or the directory that holds the **chk-N** of a job; needed without a plan.",
            examples=["/checkpoints/7d0c…", "s3://bucket/checkpoints/7d0c…"],
            pattern=CHECKPOINT_PATTERN,
            section=WHAT,
        ),
        "spec": Param(
            shown.spec, type=text, format="multiline", title="Job spec", description_md=SPEC_HELP, section=WHAT
        ),
        "choose": Param(
            None,
            type=text,
            title="Which checkpoint",
            description_md="**latest**, or **random within 7d**.",
            examples=["latest", "random within 7d"],
            pattern=r"^(latest|random within [0-9]+(\.[0-9]+)?\s?(s|m|min|h|d))$",
            section=WHAT,
        ),
        "parallelism": Param(
            shown.parallelism if shown.checkpoint else None,
            type=[*text, "integer"],
            title="New parallelism",
            description_md=PARALLELISM_HELP,
            pattern=PARALLELISM_PATTERN,
            minimum=1,
            maximum=32768,
            section=WHAT,
        ),
        "rto": Param(
            None,
            type=text,
            title="Recovery time objective",
            description_md="How long the recovery may take, such as **10m**; later is TIMED_OUT.",
            pattern=DURATION_PATTERN,
            section=LIMITS,
        ),
        "max_age": Param(
            None,
            type=text,
            title="Recovery point objective",
            description_md="How old the checkpoint may be, such as **1h**; older is FAILED.",
            pattern=DURATION_PATTERN,
            section=LIMITS,
        ),
    }
