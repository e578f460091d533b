"""A worker process without Spark: does one unit after another, and says how long each took.

``python -m tests.benchmarks.worker``; a line of JSON comes in for a unit, a line goes out when it is done.
"""

from __future__ import annotations

import gc
import json
import sys
import time


def main() -> int:
    import cdr_core.recovery.kernel_warmup  # noqa: F401 # importing it compiles or loads every kernel
    from cdr_core.runtime.unit_runner import run_unit

    gc.collect()
    gc.freeze()  # as Spark's worker daemon does before it forks, see cdr_core/spark/daemon.py
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        begun = time.perf_counter()
        try:
            run_unit(work["payload"], work["unit"], 0)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
            continue
        print(json.dumps({"seconds": time.perf_counter() - begun}), flush=True)
    return 0


def nothing(_payload: str, _unit: str, _attempt: int) -> None:
    """The work of an empty Spark job."""


if __name__ == "__main__":
    sys.exit(main())
