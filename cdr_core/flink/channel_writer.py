"""Values of channel-state writers: chunks of channels, and the lists of handles that refer to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from cdr_core.flink.metadata import Side

LONGEST_CHUNK: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, eq=False)
class ChunkBatch:
    """Chunks ``data[begins[i]:ends[i]]`` of virtual channels, as output state or input state; ``records`` in all."""

    data: npt.NDArray[np.uint8]
    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    channel: npt.NDArray[np.int64]
    output: npt.NDArray[np.bool_]
    records: int


class Stream(Protocol):
    """Target of a channel-state file's bytes. Takes all bytes of a call or raises."""

    def write(self, data: bytes, /) -> object: ...


class SubtaskSide(NamedTuple):
    """One side of one subtask, which has its own list of handles in the metadata."""

    operator: str
    side: Side
    subtask: int
