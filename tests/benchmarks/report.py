"""Results as JSON, one file a group, and the page that is made of them."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import Bench, Figure

VERSION = 1
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
REMARKS = "remarks.md"
LIBRARIES = ("numba", "numpy", "pyarrow", "pyspark", "pyiceberg", "google-crc32c")

_HEAD = """\
# Benchmarks

<!-- Generated from docs/benchmarks/*.json by `make bench`; remarks are in docs/benchmarks/remarks.md. -->

`make bench` measures, `make bench ARGS="kernels --runs 9"` one group. Every figure stands beside a baseline that was
measured in the same run, in turns with it, because machines differ and are busy: what is asked is a **ratio**. Measured
and baseline are medians; *spread* is the smallest and the largest ratio of a run and the baseline next to it. Figures
of one core are by processor time, all others by the clock. Times on Spark are without its start: an empty job of as
many units is timed right after each and subtracted.
"""


def machine() -> dict[str, Any]:
    """Where it was measured; nothing that names the machine."""
    models = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = [int(line.split()[1]) // 1024 for line in _lines("/proc/meminfo") if line.startswith("MemTotal")]
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": memory[0] if memory else None,
        "system": f"{platform.system()} {platform.release()}",
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def write_result(
    folder: Path,
    group: str,
    figures: Sequence[Figure],
    not_measured: Sequence[str],
    bench: Bench,
    load: tuple[list[float], list[float]],
) -> None:
    """The group's figures, with all that is needed to judge them."""
    folder.mkdir(parents=True, exist_ok=True)
    value = {
        "version": VERSION,
        "group": group,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": f"make bench ARGS={group}",
        "commit": _commit(),
        "runs": bench.runs,
        "tiny": bench.tiny,
        "machine": machine(),
        "load_average": {"before": load[0], "after": load[1]},
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in LIBRARIES},
        "sizes": asdict(bench.sizes),
        "figures": [figure.to_json() for figure in figures],
        "not_measured": list(not_measured),
    }
    (folder / f"{group}.json").write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def _commit() -> str | None:
    """That of the checkout; ``None`` where there is no git."""
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def write_page(folder: Path) -> Path:
    """``benchmarks.md`` beside the folder of the results."""
    path = folder.with_suffix(".md")
    path.write_text(page(folder))
    return path


def page(folder: Path) -> str:
    groups = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    remarks = folder / REMARKS
    parts = [_HEAD, *(_group(value) for value in groups)]
    if remarks.exists():
        parts.append(remarks.read_text())
    parts.append("## Not measured\n\n" + "".join(f"- {line}\n" for value in groups for line in value["not_measured"]))
    return "\n".join(parts)


def _group(value: dict[str, Any]) -> str:
    where, load = value["machine"], value["load_average"]
    head = (
        f"## {value['group']}\n\n"
        f"`{value['command']}`, {value['date'][:10]}, {_at(value)}{value['runs']} runs; {where['processor']}, "
        f"{where['cores']} cores, {where['memory_mib']} MiB; load average {load['before'][0]} before, "
        f"{load['after'][0]} after; "
        + ", ".join(f"{name} {number}" for name, number in value["versions"].items())
        + ".\n\n| what | measured | beside | ratio | spread | asked | |\n|---|--:|---|--:|--:|---|---|\n"
    )
    return head + "".join(_row(figure) for figure in value["figures"])


def _at(value: dict[str, Any]) -> str:
    """Runs of earlier releases did not note their commit."""
    return f"commit {value['commit']}, " if value.get("commit") else ""


def _row(figure: dict[str, Any]) -> str:
    asked = "; ".join(part for part in (figure["asked"], figure["goal"]) if part)
    verdict = f"**{figure['verdict']}**" if figure["verdict"] == "missed" else figure["verdict"]
    cells = (
        f"`{figure['name']}`: {figure['what']}",
        f"{_number(figure['median'])} {figure['unit']}",
        f"{figure['beside']}: {_number(figure['baseline_median'])} {figure['unit']}",
        _number(figure["ratio"]),
        f"{_number(figure['ratio_min'])}–{_number(figure['ratio_max'])}",
        asked,
        verdict,
    )
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"


def _number(value: float) -> str:
    if value == int(value) and abs(value) >= 100:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
