"""The one page through which the bytes of ambiguous channels are read.

Reading and filtering must never wait for memory that their own output holds, so each task has exactly one page outside
of all budgets. One is enough because of the order of steps: take the page, fill it, copy its contents out, give it
back. Code that takes it while it is out has broken that order, and would overwrite bytes that are still being read:
that is an error, never a second page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import TracebackType

import numpy as np
import numpy.typing as npt

from cdr_core.errors import IllegalState

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class PageCounts:
    """Counts of a task's page: allocations (0 or 1 a task), bytes through it or, of small channels, beside it; records
    that crossed a border between two fillings, and how many of those were so long that they went to a file of their
    own.
    """

    allocations: int = 0
    bytes: int = 0
    spanning: int = 0
    spooled: int = 0

    def plus(self, other: PageCounts) -> PageCounts:
        """Return the sum of both."""
        return PageCounts(
            self.allocations + other.allocations,
            self.bytes + other.bytes,
            self.spanning + other.spanning,
            self.spooled + other.spooled,
        )

    def to_json(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, int]) -> PageCounts:
        return cls(**value)


class ReadPage:
    """Memory that is allocated at the first request, the same at every request, and freed by ``close``."""

    def __init__(self, size: int) -> None:
        if size <= 0:
            raise ValueError(f"a read page of {size} bytes cannot be filled")
        self.size = size
        self.spanning = self.spooled = 0
        self._memory: Bytes | None = None
        self._out = False
        self._closed = False
        self._allocations = self._bytes = 0

    @property
    def in_use(self) -> bool:
        """Return whether it was taken and not given back."""
        return self._out

    @property
    def counts(self) -> PageCounts:
        return PageCounts(self._allocations, self._bytes, self.spanning, self.spooled)

    def take(self) -> Bytes:
        """Return the page's memory, until it is given back."""
        if self._out:
            raise IllegalState("the read page was requested while it is still in use", hint=_REPORT)
        if self._closed:
            raise IllegalState("the read page was requested after it was closed", hint=_REPORT)
        if self._memory is None:
            self._memory = np.empty(self.size, dtype=np.uint8)
            self._allocations += 1
        self._out = True
        return self._memory

    def give_back(self, used: int) -> None:
        """Give the page back after ``used`` bytes were copied out. Nothing is freed: the next request gets the same
        memory.
        """
        self._out = False
        self._bytes += used

    def pass_by(self, size: int) -> None:
        """Count bytes of small channels that were read without the page: they lie in one piece."""
        self._bytes += size

    def close(self) -> None:
        """Free it, even if it is in use; closing again does nothing."""
        self._memory = None
        self._out = False
        self._closed = True

    def __enter__(self) -> ReadPage:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()


_REPORT = "this is a fault of cdr, nothing was published; please report it"
