"""``make seeds RUNS=1498``: so many recoveries from 7 to 2 under CPU contention, counted, with what the count is worth.

Ends with status 1 when a run lost, doubled or misplaced a record, or failed. ``docs/seeds-runs.json`` is the record of
the last command; what a run was is repeated with ``--first SEED --runs 1``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.seeds.seven_to_two import Run, choose, run, sources

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "docs" / "seeds-runs.json"
BASELINE = {"losses": 0, "runs": 1498, "before_the_rewrite": "439 records lost in about 590 runs"}
"""What the seed says of itself. It counts lost records, not runs that lost any."""
SAY_EVERY = 50


def upper_bound(runs: int) -> float | None:
    """With no failure in n runs a failure is, with 95 % confidence, rarer than 3/n; a few runs show nothing."""
    return min(3 / runs, 1.0) if runs else None


@contextmanager
def contention() -> Iterator[int]:
    """A busy process per core; each ends when its standard input does, so none outlives this process."""
    spin = (
        "import os, threading\nthreading.Thread(target=lambda: (os.read(0, 1), os._exit(0))).start()\nwhile True: pass"
    )
    busy = [subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE) for _ in range(os.cpu_count() or 1)]
    try:
        yield len(busy)
    finally:
        for each in busy:
            each.kill()
            each.wait()


def summary(done: list[Run], seconds: float, busy: int, first: int) -> dict[str, Any]:
    """Everything that was counted; a bound only stands beside a zero."""
    bad = [each for each in done if not each.is_exact]
    return {
        "version": 1,
        "rows": ["002-12", "002-13", "002-14"],
        "runs": len(done),
        "first_seed": first,
        "lost": sum(each.compared.lost for each in done),
        "duplicated": sum(each.compared.duplicated for each in done),
        "misplaced": sum(each.compared.misplaced for each in done),
        "failed": sum(each.failure is not None for each in done),
        "bad_seeds": [each.seed for each in bad],
        "bad_run_rate_95_percent_upper_bound": None if bad else upper_bound(len(done)),
        "records": sum(each.records for each in done),
        "crashes": sum(each.crashes for each in done),
        "recovery_checkpoints": sum(each.checkpoints for each in done),
        "runs_by_source": dict(sorted(Counter(each.source for each in done).items())),
        "busy_processes": busy,
        "seconds": round(seconds),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "seed_002_says": BASELINE,
    }


def sentence(value: dict[str, Any]) -> str:
    counted = ", ".join(f"{value[name]} {name}" for name in ("lost", "duplicated", "misplaced"))
    bound = value["bad_run_rate_95_percent_upper_bound"]
    worth = f"; with 95 % confidence fewer than {bound:.2%} of such runs go wrong" if bound else ""
    return f"{value['runs']} runs, {value['crashes']} crashes: {counted}, {value['failed']} failed{worth}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make seeds", description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so many, and count what was done")
    parser.add_argument("--record", type=Path, default=RECORD, help="where the counts go")
    wish = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("CDR_")]:
        del os.environ[name]
    begin = time.monotonic()
    done: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="cdr-seeds-") as folder, contention() as busy:
        found = sources(Path(folder))
        for seed in range(wish.first, wish.first + wish.runs):
            done.append(run(seed, choose(seed, found), Path(folder)))
            if not done[-1].is_exact:
                print(f"seed {seed}: {done[-1]}", flush=True)
            value = summary(done, time.monotonic() - begin, busy, wish.first)
            over = bool(wish.minutes) and value["seconds"] > wish.minutes * 60
            if len(done) % SAY_EVERY == 0 or over or len(done) == wish.runs:
                wish.record.write_text(json.dumps(value, indent=2) + "\n")
                print(sentence(value), flush=True)
            if over:
                break
    return int(any(not each.is_exact for each in done))


if __name__ == "__main__":
    sys.exit(main())
