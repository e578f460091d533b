"""PySpark's worker daemon with the heavy imports done once, before it forks.

Stock PySpark imports in every worker after the fork, because numpy and pyarrow start threads when imported and a fork
copies only one. Those threads are switched off here (they are pools and a background purge, not needed for the work),
so that importing first is safe; if one appears nevertheless, the preload stops at the modules imported so far.
Workers inherit the modules:  0.1 s to the first row instead of 1 to 2.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from pathlib import Path

from cdr_core.spark.worker import PRELOAD_VARIABLE

_NO_THREADS = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}

_NOTHING_KEPT = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
"""Arrow's own allocator keeps what it was given back: 40 MiB and more in a worker whose budget is 2 MiB. It is chosen
when pyarrow is imported.
"""

ENVIRONMENT = _NO_THREADS | _NOTHING_KEPT

_PRELOADED = (
    "pyspark.worker",
    "pyspark.sql.pandas.serializers",
    "numpy",
    "pyarrow",
    "cdr_core.spark.worker",
    "numba",
)


def preload() -> list[str]:
    """Import the modules that every task needs; return their names. An import that fails is repeated, and fails, in the
    task.
    """
    loaded: list[str] = []
    wanted = [name for name in os.environ.get(PRELOAD_VARIABLE, "").split(",") if name]
    for name in (*_PRELOADED, *wanted):
        if _threads() > 1:
            print(f"cdr worker daemon: a thread started while importing {loaded[-1]}", file=sys.stderr)
            break
        try:
            importlib.import_module(name)
        except Exception as error:
            print(f"cdr worker daemon: {name} was not preloaded: {error!r}", file=sys.stderr)
        loaded.append(name)
    return loaded


def _threads() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.is_dir() else 1


if __name__ == "__main__":
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    preload()
    # PySpark collects garbage after every task: 20 ms over the objects of these imports, which never are garbage, and
    # a private copy of their pages in every worker.
    gc.collect()
    gc.freeze()
    from pyspark.daemon import manager

    manager()
