"""No DAG: shows unusable drill plans as an import error of Airflow, with the plan's name and the reason.

It is a file of its own because a file that fails to import loses all its DAGs; the sound plans keep theirs.
"""

from __future__ import annotations

from cdr_airflow.drill_dags import read_plans
from cdr_core.errors import DrillPlanRefused

_refusals = read_plans().refusals
if _refusals:
    raise DrillPlanRefused(" ".join(sentence for _, sentence in _refusals))
