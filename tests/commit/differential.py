"""One checkpoint for every way to recover it, and the rows that each must give."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

from tests.support.written import record, status, watermark, write_checkpoint

WATERMARK = "40"
"""Of six channels one is idle at 1000, the others end at 40 and above."""


def make_source(folder: Path) -> str:
    """Keyed records of six channels over several pages, with watermarks among them, and one channel that is idle."""
    channels = {}
    for up, down in product(range(2), range(3)):
        mine = [record(1000 * up + n, "x" * 90, time=n) for n in range(100)]
        idle = (up, down) == (1, 2)
        end = [watermark(1000), status(idle=True)] if idle else [watermark(40 + up + down)]
        channels[up, down] = b"".join([watermark(10), *mine, *end])
    return write_checkpoint(folder, 2, 3, channels)


def place(row: dict[str, Any]) -> tuple[int, ...]:
    return row["up"], row["down"], row["pos"], row["new_up"], row["new_down"]


def expected() -> Any:
    """By hand: the position counts the watermark in front; at the same parallelism nothing moves."""
    for up, down, n in product(range(2), range(3), range(100)):
        key = 1000 * up + n
        yield (up, down, n + 1, up, down), n, key, record(key, "x" * 90, time=n)[4:]
