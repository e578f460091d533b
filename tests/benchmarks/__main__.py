"""``python -m tests.benchmarks [GROUP …]``: runs groups of benchmarks and writes what they found."""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.benchmarks.figures import EARNEST, TINY, Bench, Sizes, load_average
from tests.benchmarks.report import RESULTS, write_page, write_result

ROOT = Path(__file__).resolve().parents[2]
GROUPS = ("formats", "kernels", "phases", "spill", "checkpoints", "recoveries", "memory", "page")
ON_REQUEST = ("flink", "flink_large", "growth", "resume")
"""Only when they are named: two need the jars of a Flink, which are fetched when they are not there; growth takes more
than half an hour and 40 GB of disk, resume 30 GB.
"""
HEADROOM = 1 << 30
"""Bytes of the disk that a benchmark leaves alone."""


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    sizes = TINY if options.tiny else replace(EARNEST, large=options.large or EARNEST.large)
    for group in options.groups or GROUPS:
        _run_group(group, options, sizes)
    page = write_page(options.results)
    print(f"bench: {page} written", flush=True)
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description="Measure, beside baselines of the same run.")
    parser.add_argument(
        "groups",
        nargs="*",
        metavar="GROUP",
        help=f"some of {', '.join(GROUPS)} (all by default), or flink, flink_large, growth, resume",
    )
    parser.add_argument("--runs", type=int, default=5, help="how often each figure is taken; the median counts")
    parser.add_argument("--large", type=int, default=0, help="bytes of the largest checkpoint, 4 GB by default")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()), help="where there is room to work")
    parser.add_argument("--memory", type=Path, default=Path("/dev/shm"), help="a directory in memory (tmpfs)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the results go")
    parser.add_argument("--tiny", action="store_true", help="a few hundred kilobytes: shows only that it works")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.groups) - {*GROUPS, *ON_REQUEST})
    if unknown:
        parser.error(f"{unknown[0]!r} is no group; there are {', '.join((*GROUPS, *ON_REQUEST))}")
    return options


def _run_group(group: str, options: argparse.Namespace, sizes: Sizes) -> None:
    options.scratch.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="cdr-bench-", dir=options.scratch))
    try:
        _environment(scratch)
        module = importlib.import_module(f"tests.benchmarks.{group}")
        _require_room(scratch, module.needs(sizes))
        before, begun = load_average(), time.monotonic()

        def say(text: str) -> None:
            print(f"bench: {group} {time.monotonic() - begun:6.1f} s  {text}", flush=True)

        bench = Bench(scratch, sizes, options.runs, options.tiny, options.memory, say)
        figures = [bench.figure(figure) for figure in module.run(bench)]
        write_result(options.results, group, figures, module.NOT_MEASURED, bench, (before, load_average()))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _environment(scratch: Path) -> None:
    """The defaults, and a home in the scratch directory: nothing of the developer's settings reaches a benchmark."""
    for name in [name for name in os.environ if name.startswith("CDR_")]:
        del os.environ[name]
    home = scratch / "home"
    (home / "java").mkdir(parents=True)
    for archive in (ROOT / ".cdr" / "java").glob("*.aot"):
        (home / "java" / archive.name).symlink_to(archive)
    os.environ["CDR_HOME"] = str(home)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("NUMBA_CACHE_DIR", str(ROOT / ".cdr" / "numba"))


def _require_room(scratch: Path, needed: int) -> None:
    free = shutil.disk_usage(scratch).free
    if free < needed + HEADROOM:
        raise SystemExit(
            f"bench: {scratch.parent} has {free / 1e9:.1f} GB free and {(needed + HEADROOM) / 1e9:.1f} GB are needed; "
            "give --scratch DIR with more room, or --large with fewer bytes"
        )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
