"""### Recover the in-flight data of a Flink checkpoint

Takes an **unaligned checkpoint**, moves its in-flight records to a new parallelism and publishes them exactly once,
with a receipt that proves it. Trigger it, fill in the form, and follow the five tasks:

| task | does |
|---|---|
| `read` | creates (or finds) the recovery, reads `_metadata` and the channel state, makes the plan |
| `filter` | decides for every record which new subtask owns it |
| `spill` | writes each new subtask's share in order |
| `drain` | turns the shares into prepared output |
| `commit` | publishes it in one step and writes the receipt |

* **Retry, clear, trigger again**: always safe. A finished phase returns its stored result, an unfinished one resumes
  where it was, and processes of an older attempt are fenced off.
* **Mark success by hand**: does no work; the next task will refuse.
* **Mark failed**: the Spark job and the driver stop within seconds.
* **Deadline**: a run that has not succeeded within its recovery time objective is reported and continues.
* What a retry cannot help (a corrupt checkpoint, a spec that does not fit) fails at once, with a sentence in the log.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

from airflow.sdk import DAG, BaseOperator

from cdr_airflow import approval, deadline
from cdr_airflow.assets import RECOVERED
from cdr_airflow.form import REQUEST, example, recovery_params
from cdr_airflow.operator import FIRST_PHASE, PhaseOperator

with DAG(
    "cdr_recover",
    dag_display_name="Recover a checkpoint",
    description="In-flight data of a Flink checkpoint, moved to a new parallelism and published exactly once",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    # Each recovery has a Spark server of its own that uses all cores: concurrent recoveries only delay each other.
    max_active_runs=2,
    tags=["cdr"],
    params=recovery_params(example()),
    deadline=deadline.alert(),
    # The params are text for cdr: as native objects the parallelism 2 would become a number and the spec's YAML a
    # mapping.
    render_template_as_native_obj=False,
    default_args={
        "owner": "cdr",
        "retries": 3,
        # A user waits for a recovery: 5, 10, 20 seconds. Enough for a restarted database, short enough to watch.
        "retry_delay": timedelta(seconds=5),
        "retry_exponential_backoff": 2.0,
        "max_retry_delay": timedelta(minutes=1),
    },
) as dag:
    tasks: list[BaseOperator] = [PhaseOperator(task_id=FIRST_PHASE, phase=FIRST_PHASE, request=REQUEST)]
    tasks += [PhaseOperator(task_id=phase, phase=phase) for phase in ("filter", "spill", "drain")]
    tasks += approval.tasks()  # none, unless CDR_APPROVAL asks for one
    # The alias is an inlet as well: commit looks up what it announced before.
    tasks += [PhaseOperator(task_id="commit", phase="commit", inlets=[RECOVERED], outlets=[RECOVERED])]
    for earlier, later in pairwise(tasks):
        earlier >> later
