"""Jobs of shapes that no shipped checkpoint has, and their checkpoints re-written by cdr."""

from __future__ import annotations

from pathlib import Path

from tests.flink.harness import Job, make, write_oracle
from tests.flink.rewriting import recover

_STRINGS, _BYTES = "TUPLE<LONG, INT, LONG, STRING>", "TUPLE<LONG, INT, LONG, BYTES>"


HASHED = f"{{partitioner: hash, record: '{_STRINGS}', key: [f0]}}"


ROCKSDB = {"state.backend.type": "rocksdb", "execution.checkpointing.incremental": "true"}


def spec_of(*exchanges: tuple[str, str, int, str, int, str]) -> str:
    """Of exchanges as (name, upstream, partition, downstream, gate, the rest in braces)."""
    lines = ["job: shapes", "exchanges:"]
    for name, up, partition, down, gate, rest in exchanges:
        ends = f"upstream: {{operator: {up}, partition: {partition}}}, downstream: {{operator: {down}, gate: {gate}}}"
        lines.append(f"  - {{name: {name}, {ends}, {rest[1:-1]}}}")
    return "\n".join(lines) + "\n"


KEYED = spec_of(("main", "gen", 0, "slow", 0, HASHED))


def made(job: Job, folder: Path) -> Path:
    return make(job, folder / "made").checkpoints[-1]


def in_flight(checkpoint: Path, spec: str, folder: Path) -> list[tuple[int, int]]:
    """By Flink's own classes."""
    oracle = write_oracle(checkpoint, spec, folder / "oracle.jsonl.gz")
    return [(record.gen or 0, record.seq or 0) for record in oracle.records]


def rewritten(checkpoint: Path, spec: str, wish: str, folder: Path) -> Path:
    (folder / "spec.yaml").write_text(spec)
    assert recover(checkpoint, folder / "spec.yaml", wish, folder / "rewritten" / "chk")["verdict"] == "balanced"
    return folder / "rewritten" / "chk"
