"""A list of i64 that is a value: compact, comparable, hashable."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Offsets:
    """Offsets in file order, kept as the stored big-endian bytes.

    A tuple of ints would take five times the memory of the file; ``tuple(offsets)`` makes one where that is wanted.
    """

    raw: bytes = b""

    def __post_init__(self) -> None:
        if len(self.raw) % 8:
            raise ValueError(f"{len(self.raw)} bytes are not a whole number of offsets")

    @classmethod
    def of(cls, values: Iterable[int]) -> Offsets:
        """Return the offsets of these numbers; each must fit an i64."""
        if isinstance(values, np.ndarray):
            return cls(values.astype(">i8").tobytes())
        numbers = tuple(values)
        return cls(struct.pack(f">{len(numbers)}q", *numbers))

    def numpy(self) -> npt.NDArray[np.int64]:
        """Return a fresh array in native byte order."""
        return np.frombuffer(self.raw, dtype=">i8").astype(np.int64)

    def __len__(self) -> int:
        return len(self.raw) // 8

    def __iter__(self) -> Iterator[int]:
        return (value for (value,) in struct.iter_unpack(">q", self.raw))

    def __getitem__(self, index: int) -> int:
        position = range(len(self))[index]
        value: int = struct.unpack_from(">q", self.raw, 8 * position)[0]
        return value

    def __repr__(self) -> str:
        shown = ", ".join(str(self[index]) for index in range(min(len(self), 8)))
        return f"Offsets.of([{shown}{', …' if len(self) > 8 else ''}])"
