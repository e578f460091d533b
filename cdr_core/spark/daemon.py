"""PySpark's worker daemon with the heavy imports done once, before it forks.

Stock PySpark imports in every worker after the fork, because numpy and pyarrow start threads when imported and a fork
copies only one. Those threads are switched off here (they are pools and a background purge, not needed for the work),
so that importing first is safe; should one appear all the same, the preload stops at what was imported so far.
Workers get their modules for nothing: 0.1 s to the first row instead of 1 to 2.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path

_NO_THREADS = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}

_PRELOADED = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "numpy",
    "pyarrow",
    "cdr_core.spark.worker",
    "numba",
)


def preload() -> list[str]:
    """Import what every task needs; returns the names. A module that is missing is left to whoever needs it."""
    loaded: list[str] = []
    for name in _PRELOADED:
        if _threads() > 1:
            print(f"cdr worker daemon: a thread started while importing {loaded[-1]}", file=sys.stderr)
            break
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
            loaded.append(name)
    return loaded


def _threads() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else 1


if __name__ == "__main__":
    for variable, value in _NO_THREADS.items():
        os.environ.setdefault(variable, value)
    preload()
    from pyspark.daemon import manager

    manager()
