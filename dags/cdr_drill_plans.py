"""No DAG: shows drill plans that cannot be used as an import error of Airflow, with the plan's name and what is wrong.

It is a file of its own because a file that fails to import takes all its DAGs with it; the sound plans keep theirs.
"""

from __future__ import annotations

from cdr_airflow.drill_dags import read_plans
from cdr_core.errors import DrillPlanRefused

_refusals = read_plans().refusals
if _refusals:
    raise DrillPlanRefused(" ".join(sentence for _, sentence in _refusals))
