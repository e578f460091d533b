"""Damage that once got through: kept as an edit of a file of the corpus, which may grow without changing it."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tests.flink_formats.hostile.corpus import Item, items


@dataclass(frozen=True)
class Known:
    """``new`` in the place of every ``old`` in a file, and what it did."""

    what: str
    item: str
    old: bytes
    new: bytes

    def damaged(self) -> tuple[Item, bytes]:
        """The file and what becomes of it."""
        (item,) = (each for each in items() if each.name == self.item and each.is_metadata)
        assert self.old in item.data, f"{self.item} has other bytes by now"
        return item, item.data.replace(self.old, self.new)


def _operator(parallelism: int, max_parallelism: int) -> bytes:
    """The two numbers of an operator without coordinator state, and its two subtasks."""
    return struct.pack(">iibi", parallelism, max_parallelism, 0, 2)


KNOWN = (
    Known("16 GiB for one number per key group", "tuple", _operator(2, 128), _operator(2, 2**31 - 1)),
    Known("two gigabytes of them", "version 3", _operator(2, 128), _operator(2, 0x1000_0080)),
    Known("a subtask by subtask count to 2^31", "inline", _operator(2, 128), _operator(2**31 - 1, 2**31 - 1)),
)
