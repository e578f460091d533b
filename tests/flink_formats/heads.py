"""Heads of keyed state as Flink wrote them."""

from __future__ import annotations

import gzip

from tests.support.checkpoints import FIXTURES

VECTORS = FIXTURES / "serializers" / "heads-2.3.0.tsv.gz"
"""Made by ``tests/flink/java/cdr/heads/Heads.java``; ``tests/flink/test_heads.py`` makes them again."""


def _vectors() -> dict[str, bytes]:
    lines = gzip.decompress(VECTORS.read_bytes()).decode().splitlines()
    return {name: bytes.fromhex(data) for name, data in (line.split("\t") for line in lines)}


HEADS = _vectors()
