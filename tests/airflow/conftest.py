"""Airflow for the tests: a home of its own, made before anything imports airflow."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Airflow reads its configuration when it is first imported and keeps it: it must not find the developer's own.
os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="cdr-airflow-")
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"

# As Airflow itself does with its plugins folder.
sys.path.insert(0, str(ROOT / "plugins"))
