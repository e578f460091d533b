"""``make seeds RUNS=1498``: so many recoveries from 7 to 2 under CPU contention, counted, with what the count is worth.

Ends with status 1 when a run lost, doubled or misplaced a record, or failed. ``docs/seeds-runs.json`` is the record of
the last command; what a run was is repeated with ``--first SEED --runs 1 --again``. A command that was interrupted goes
on where it was: ``.cdr/seeds-runs.jsonl`` has a line for every run that ended.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.seeds.expected import Compared
from tests.seeds.seven_to_two import Run, Source, choose, run, sources
from tests.support.busy import contention

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "docs" / "seeds-runs.json"
JOURNAL = ROOT / ".cdr" / "seeds-runs.jsonl"
MEMORY = Path("/dev/shm")
BASELINE = {"losses": 0, "runs": 1498, "before_the_rewrite": "439 records lost in about 590 runs"}
"""What the seed says of itself. It counts lost records, not runs that lost any."""
SAY_EVERY = 50


def scratch() -> Path | None:
    """Memory where there is such a directory: what dies here is a process, so what a disk would keep is no matter."""
    return MEMORY if os.access(MEMORY, os.W_OK) else None


def upper_bound(runs: int) -> float | None:
    """With no failure in n runs a failure is, with 95 % confidence, rarer than 3/n; a few runs show nothing."""
    return min(3 / runs, 1.0) if runs else None


def summary(done: list[Run], busy: int, jobs: int, first: int) -> dict[str, Any]:
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
        "bad_seeds": sorted(each.seed for each in bad),
        "bad_run_rate_95_percent_upper_bound": None if bad else upper_bound(len(done)),
        "records": sum(each.records for each in done),
        "crashes": sum(each.crashes for each in done),
        "recovery_checkpoints": sum(each.checkpoints for each in done),
        "runs_by_source": dict(sorted(Counter(each.source for each in done).items())),
        "busy_processes": busy,
        "runs_at_once": jobs,
        "run_seconds": round(sum(each.seconds for each in done)),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "seed_002_says": BASELINE,
    }


def origin() -> dict[str, Any]:
    """What was run, of which state of the code, and when."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    command = " ".join(["python -m tests.seeds", *sys.argv[1:]])
    return {"commit": commit, "command": command, "finished": datetime.now(UTC).date().isoformat()}


def sentence(value: dict[str, Any]) -> str:
    counted = ", ".join(f"{value[name]} {name}" for name in ("lost", "duplicated", "misplaced"))
    bound = value["bad_run_rate_95_percent_upper_bound"]
    worth = f"; with 95 % confidence fewer than {bound:.2%} of such runs go wrong" if bound else ""
    return f"{value['runs']} runs, {value['crashes']} crashes: {counted}, {value['failed']} failed{worth}"


def as_line(each: Run) -> str:
    """A run as a line of the journal."""
    return json.dumps(asdict(each), sort_keys=True)


def from_line(line: str) -> Run:
    value = json.loads(line)
    return Run(**{**value, "compared": Compared(**value["compared"])})


def journal_of(path: Path, first: int, runs: int) -> list[Run]:
    """The wanted runs that an interrupted command finished; a line that was cut short was not one."""
    found: dict[int, Run] = {}
    for line in path.read_text().splitlines() if path.is_file() else []:
        try:
            each = from_line(line)
        except ValueError:
            continue
        if first <= each.seed < first + runs:
            found[each.seed] = each
    return list(found.values())


_found: tuple[Source, ...] = ()
"""The checkpoints; forked processes have them without reading them again."""


def _one(seed: int, folder: Path) -> Run:
    return run(seed, choose(seed, _found), folder)


def runs_at_once(seeds: Iterable[int], folder: Path, jobs: int) -> Generator[Run]:
    """Each in one of so many processes, in the order in which they end."""
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
        ordered = [pool.submit(_one, seed, folder) for seed in seeds]
        try:
            for each in as_completed(ordered):
                yield each.result()
        finally:
            pool.shutdown(cancel_futures=True)


def main() -> int:
    global _found
    parser = argparse.ArgumentParser(prog="make seeds", description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so many, and count what was done")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once; several are each other's contention")
    parser.add_argument("--record", type=Path, default=RECORD, help="where the counts go")
    parser.add_argument("--journal", type=Path, default=JOURNAL, help="the runs that are done, to go on from")
    parser.add_argument("--again", action="store_true", help="begin anew instead of going on")
    wish = parser.parse_args()
    for name in [name for name in os.environ if name.startswith("CDR_")]:
        del os.environ[name]
    if wish.again:
        wish.journal.unlink(missing_ok=True)
    begin = time.monotonic()
    done = journal_of(wish.journal, wish.first, wish.runs)
    missing = sorted(set(range(wish.first, wish.first + wish.runs)) - {each.seed for each in done})
    wish.journal.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cdr-seeds-", dir=scratch())))
        _found = sources(folder)
        busy = stack.enter_context(contention(0 if wish.jobs > (os.cpu_count() or 1) else os.cpu_count() or 1))
        journal = stack.enter_context(wish.journal.open("a"))
        for each in stack.enter_context(closing(runs_at_once(missing, folder, wish.jobs))):
            done.append(each)
            print(as_line(each), file=journal, flush=True)
            if not each.is_exact:
                print(f"seed {each.seed}: {each}", flush=True)
            value = summary(done, busy, wish.jobs, wish.first)
            over = bool(wish.minutes) and time.monotonic() - begin > wish.minutes * 60
            if len(done) % SAY_EVERY == 0 or over or len(done) == wish.runs:
                wish.record.write_text(json.dumps(value | origin(), indent=2) + "\n")
                print(sentence(value), flush=True)
            if over:
                break
    return int(any(not each.is_exact for each in done))


if __name__ == "__main__":
    sys.exit(main())
