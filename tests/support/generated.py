"""Checkpoints made on the spot, for tests that need more or longer records than the shipped ones have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cdr_core.cli.generate import generate

KEYED = """
job: generated
exchanges:
  - name: main
    upstream: {operator: gen, partition: 0}
    downstream: {operator: slow, gate: 0}
    partitioner: hash
    record: TUPLE<LONG, INT, LONG, STRING>
    key: [f0]
"""


def generated(folder: Path, parallelism: str = "3", size: str = "1MB", spec: str = KEYED, **options: Any) -> str:
    """The directory of a new checkpoint of the spec's exchanges, ``gen → slow`` by key unless told otherwise."""
    file = folder.with_name(f"{folder.name}.yaml")
    file.write_text(spec)
    generate(directory=str(folder), spec=str(file), parallelism=parallelism, size=size, **options)
    return str(folder)
