"""Scratch disk of one task: a ring of bytes in a file without a name, first in, first out.

The file has no name once it is open, so nothing is left behind, whatever happens to the process. It is a cache: bytes
that are not there any more, or not the same, are ``None``.
"""

from __future__ import annotations

import os
import tempfile
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import google_crc32c
import numpy as np
import numpy.typing as npt

from cdr_core.faults import reach
from cdr_core.storage.local import explained

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Kept:
    """Where bytes are kept, and their CRC-32C."""

    offset: int
    length: int
    crc32c: int


class Scratch:
    """Room for ``capacity`` bytes below a directory. For one thread at a time."""

    def __init__(self, directory: Path, capacity: int) -> None:
        self._directory, self._capacity = directory, capacity
        self._file: IO[bytes] | None = None
        self._kept: deque[Kept] = deque()

    def fits(self, length: int) -> bool:
        """Whether so many bytes have room behind those that are kept."""
        return self._place(length) is not None

    def keep(self, data: Bytes) -> Kept:
        """Write bytes that fit; a disk that is full is an error, and nothing is kept."""
        offset = self._place(len(data))
        assert offset is not None, "asked before"
        self.write(offset, data)
        reach("drain.spilled")
        kept = Kept(offset, len(data), google_crc32c.value(data))
        self._kept.append(kept)
        return kept

    def take(self, kept: Kept) -> Bytes | None:
        """The oldest bytes, whose room is free from now on; ``None`` if they are not the same any more."""
        assert self._kept[0] is kept, "first in, first out"
        data = self.read(kept.offset, kept.length)
        self._kept.popleft()
        return data if len(data) == kept.length and google_crc32c.value(data) == kept.crc32c else None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, offset: int, data: Bytes) -> None:
        with explained(self._directory, "write"):
            if self._file is None:
                self._directory.mkdir(parents=True, exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=self._directory, prefix="cdr-scratch-")  # noqa: SIM115 # kept open
            view = data.data
            while view:
                written = os.pwrite(self._file.fileno(), view, offset)
                view, offset = view[written:], offset + written

    def read(self, offset: int, length: int) -> Bytes:
        assert self._file is not None, "something was kept"
        data = np.empty(length, np.uint8)
        with explained(self._directory, "read"):
            found = os.preadv(self._file.fileno(), [data.data], offset)
        return data[:found]

    def _place(self, length: int) -> int | None:
        """Where the next bytes go; ``None`` where there is no room in one piece."""
        if not self._kept:
            return 0 if length <= self._capacity else None
        head, tail = self._kept[0].offset, self._kept[-1].offset + self._kept[-1].length
        if tail > head:
            if tail + length <= self._capacity:
                return tail
            return 0 if length < head else None
        return tail if tail + length < head else None
