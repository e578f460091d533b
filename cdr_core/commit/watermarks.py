"""The watermark of a commit: what is true of all subtasks together.

Per checkpoint it is the minimum over the active subtasks; one that is idle is left out, one that has no watermark
yet holds everybody back. It never falls: a subtask that was idle and comes back with an older one changes nothing. When
all are idle none is waited for: it rises once to the highest that any of them had, and stays there until one
of them is active again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cdr_core.commit.committable import Committable
from cdr_core.errors import IllegalState


class WatermarkAligner:
    """Asked for checkpoint after checkpoint, ascending; what it answered for one is never changed afterwards.

    It can always be made again from the durable entries: the same entries give the same answers.
    """

    def __init__(self, subtasks: Iterable[int]) -> None:
        self._said: dict[int, tuple[int | None, bool]] = dict.fromkeys(subtasks, (None, False))
        self._aligned: int | None = None
        self._all_idle = False
        self._checkpoint = 0

    def align(self, checkpoint: int, entries: Mapping[int, Committable]) -> int | None:
        """The watermark of a checkpoint. A subtask without an entry for it (it was aborted) is where it was before."""
        if checkpoint <= self._checkpoint:
            raise IllegalState(
                f"the watermark of checkpoint {checkpoint} is asked for after that of {self._checkpoint}"
            )
        self._checkpoint = checkpoint
        for subtask, entry in entries.items():
            self._said[subtask] = (entry.watermark, entry.idle)
        active = [watermark for watermark, idle in self._said.values() if not idle]
        if active:
            self._all_idle = False
            known = [watermark for watermark in active if watermark is not None]
            self._raise_to(min(known) if len(known) == len(active) else None)
        elif not self._all_idle:
            self._all_idle = True
            self._raise_to(
                max((watermark for watermark, _ in self._said.values() if watermark is not None), default=None)
            )
        return self._aligned

    def _raise_to(self, watermark: int | None) -> None:
        if watermark is not None and (self._aligned is None or watermark > self._aligned):
            self._aligned = watermark
