"""The heads of keyed state that are shipped as vectors are what this Flink writes."""

from __future__ import annotations

from tests.flink.harness import java
from tests.flink_formats.heads import HEADS


def test_flink_writes_the_shipped_heads(flink: str) -> None:
    made = dict(line.split("\t") for line in java.run(flink, "cdr.heads.Heads", [], 120))
    assert {name: bytes.fromhex(data) for name, data in made.items()} == HEADS
