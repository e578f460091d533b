"""### Rehearse a recovery

A **restore drill** chooses a checkpoint, recovers it to a scratch place, checks the result, removes it and judges. It
never touches production output, and takes a bounded share of the cores.

| task | does |
|---|---|
| `read` | chooses the checkpoint, writes the drill down, reads and plans |
| `filter`, `spill`, `drain`, `commit` | as in `cdr_recover` |
| `verdict` | checks, judges, removes the scratch; runs even if other tasks failed |

| result | means | do |
|---|---|---|
| PASSED | recovered, balanced, in time, every check passed | nothing |
| FAILED | the checkpoint cannot be recovered as planned, is too old, or a check failed | the log explains each check |
| TIMED_OUT | recovered, but later than the plan's `rto` | look at the phases' times |
| COULD_NOT_RUN | the drill could not be carried out and proves nothing | remove the cause, trigger again |

* The form takes a **plan** by its name, or everything a drill needs. Each plan also has a DAG of its own with its
  schedule, `cdr_restore_drill__PLAN`.
* A result never changes. Clearing a task of a drill that has its verdict is refused: trigger a new one.
"""

from __future__ import annotations

from cdr_airflow.drill_dags import manual_dag, plan_dags, read_plans

_plans = read_plans()
dag = manual_dag(_plans, __doc__)
# By id in the module, where Airflow looks for DAGs. Unusable plans are shown by cdr_drill_plans.py, so that no other
# drill loses its DAG.
globals().update(plan_dags(_plans, __doc__))
