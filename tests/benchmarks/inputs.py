"""What the benchmarks work on: checkpoints made by ``cdr generate``, and the recoveries of them."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from cdr_core.channels.channel_source import open_checkpoint
from cdr_core.cli.generate import generate
from cdr_core.planning.job_spec import parse_spec
from cdr_core.planning.parallelism import parse_parallelism
from cdr_core.planning.plan import Plan, make_plan

SPLIT = 16 << 20
"""The default of CDR_SPLIT_SIZE."""

LONG_KEY, STRING_KEY, SQL_KEY = "LONG", "STRING", "ROWDATA"
RECORDS = {
    LONG_KEY: "TUPLE<LONG, INT, LONG, STRING>",
    STRING_KEY: "TUPLE<STRING, INT, LONG, BYTES>",
    SQL_KEY: "ROWDATA<k BIGINT, gen INT, seq BIGINT, payload STRING>",
}


def spec(kind: str = LONG_KEY) -> str:
    """One keyed exchange of records of that kind."""
    key = "k" if kind == SQL_KEY else "f0"
    return f"""
job: benchmark
exchanges:
  - name: main
    upstream: {{operator: gen, partition: 0}}
    downstream: {{operator: slow, gate: 0}}
    partitioner: hash
    record: "{RECORDS[kind]}"
    key: [{key}]
"""


def checkpoint(
    folder: Path, size: int, parallelism: str, record_bytes: str, kind: str = LONG_KEY, **options: Any
) -> Path:
    """A new checkpoint of that many bytes in flight."""
    file = folder.with_name(f"{folder.name}.yaml")
    file.write_text(spec(kind))
    with redirect_stdout(StringIO()):
        generate(str(folder), str(file), parallelism, str(size), record_bytes=record_bytes, **{"keys": 2000, **options})
    return folder


def plan_of(folder: Path, parallelism: str, kind: str = LONG_KEY) -> Plan:
    return make_plan(open_checkpoint(str(folder)), parse_spec(spec(kind)), parse_parallelism(parallelism), SPLIT)


def state_files(folder: Path) -> list[Path]:
    """The channel-state files of a checkpoint."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "_metadata")


def held(folder: Path) -> int:
    """Bytes of all files below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
