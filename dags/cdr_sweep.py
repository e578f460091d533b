"""### Remove what is left over

Dead attempts, finished recoveries and dead drills leave files: in the workspace, in spill directories, in targets, in
the drills' scratch. Every day `dry_run` lists what would go and why, then `sweep` removes it. Nothing goes that a row
of the database still needs, and nothing that is not provably of a recovery or drill in it.

* Expired recovery checkpoints and released spill sets go.
* Plan and receipt files of a recovery that ended longer ago than `keep` go; the database keeps the receipt.
* A drill whose runner is gone is ended as COULD_NOT_RUN, and its scratch goes.
* Triggered by hand, it only lists, unless *Remove* is on.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param

from cdr_airflow.form import DURATION_PATTERN
from cdr_airflow.sweep_operator import SweepOperator

KEEP = "{{ params.keep or '' }}"

with DAG(
    "cdr_sweep",
    dag_display_name="Sweep leftovers",
    description="Lists, then removes, what dead attempts, finished recoveries and dead drills left behind",
    doc_md=__doc__,
    schedule="@daily",
    catchup=False,
    max_active_runs=1,
    tags=["cdr"],
    render_template_as_native_obj=False,
    params={
        "remove": Param(
            False,
            type="boolean",
            title="Remove",
            description_md="Off: only list what would go. Runs of the schedule always remove.",
        ),
        "keep": Param(
            None,
            type=["null", "string"],
            title="Keep",
            description_md="How long plan and receipt files of a finished recovery stay, such as **30d**; leave empty "
            "to use **CDR_SWEEP_AFTER**.",
            pattern=DURATION_PATTERN,
        ),
    },
    default_args={"owner": "cdr", "retries": 2, "retry_delay": timedelta(seconds=30)},
) as dag:
    look = SweepOperator(task_id="dry_run", dry_run=True, keep=KEEP)
    remove = SweepOperator(
        task_id="sweep",
        dry_run=False,
        remove="{{ 'yes' if params.remove or dag_run.run_type == 'scheduled' else 'no' }}",
        keep=KEEP,
    )
    look >> remove
