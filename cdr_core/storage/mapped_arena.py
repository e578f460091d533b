"""Room on a local disk for bytes that were fetched: mapped instead of held, and gone with the process.

The files have no name once they are open, so that nothing is left behind, whatever happens to the process.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from cdr_core.storage.local import explained

SEGMENT = 1 << 30
"""Bytes of one file, of which only those written take room. One mapping each: a process may have few of them."""


class Arena:
    """Keeps byte strings in nameless files below ``directory``; memory is what the kernel's cache makes of it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: IO[bytes] | None = None
        self._mapped: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
        self._used = 0

    def keep(self, data: bytes) -> npt.NDArray[np.uint8]:
        """The same bytes, read-only, where they need no memory."""
        if not data:
            return np.zeros(0, np.uint8)
        with explained(self._directory, "write"):
            if self._file is None or self._used + len(data) > len(self._mapped):
                self._open(max(SEGMENT, len(data)))
            assert self._file is not None
            self._write(self._file.fileno(), data)
        kept = self._mapped[self._used : self._used + len(data)]
        self._used += len(data)
        return kept

    def _open(self, size: int) -> None:
        """A file of holes; earlier ones live as long as their bytes are in use."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._file = tempfile.TemporaryFile(dir=self._directory, prefix="fetched-")  # noqa: SIM115 # kept open
        weakref.finalize(self, self._file.close)
        os.truncate(self._file.fileno(), size)
        self._mapped = np.memmap(self._file, dtype=np.uint8, mode="r")
        self._used = 0

    def _write(self, descriptor: int, data: bytes) -> None:
        """By a call and not through the mapping: there a full disk would be a signal that ends the process."""
        view, at = memoryview(data), self._used
        while view:
            written = os.pwrite(descriptor, view, at)
            view, at = view[written:], at + written
