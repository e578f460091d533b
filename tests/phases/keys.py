"""Keys by the subtask that owns them."""

from __future__ import annotations

import numpy as np

from cdr_core.flink.keys import key_groups, owner
from cdr_core.flink.types import parse_type
from tests.support.written import (
    MAX_PARALLELISM,
)


def key_of(subtask: int, parallelism: int, among: int = 10_000) -> int:
    """A key that the subtask owns."""
    groups = key_groups(
        parse_type("LONG"),
        ("f0",),
        np.frombuffer(np.arange(among, dtype=">i8").tobytes(), np.uint8),
        np.arange(among, dtype=np.int64) * 8,
        np.arange(1, among + 1, dtype=np.int64) * 8,
        MAX_PARALLELISM,
    )
    return next(n for n, group in enumerate(groups.tolist()) if owner(group, parallelism, MAX_PARALLELISM) == subtask)
