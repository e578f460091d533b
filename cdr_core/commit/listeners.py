"""Who is told after a commit, with a state that outlives the process.

A listener is told of every commit in ascending order, after the commit is recorded. Killed in between, it is told
again by the next attempt: its effect must be the same when it happens twice. What it has seen is in its state, which
is saved afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cdr_core.faults import reach
from cdr_core.storage import join, storage_for
from cdr_core.targets import Target

Json = Mapping[str, Any]

MARKER_VERSION = 1
UP_TO = "up_to"


@dataclass(frozen=True, slots=True)
class Notice:
    """A commit that is visible in the target and recorded."""

    commit_id: int
    records: int
    watermark: int | None


class Listener(Protocol):
    """``name`` is the key of its durable state."""

    name: str

    def committed(self, notice: Notice) -> None:
        """Do what has to be done after this commit; harmless when it was done before."""


class PartitionDone:
    """Creates ``DIR/_cdr/done/RECOVERY-COMMIT.json`` once the commit is visible, for programs that wait."""

    name = "partition-done"

    def __init__(self, directory: str, recovery: str) -> None:
        self._directory, self._recovery = join(directory, "_cdr", "done"), recovery

    def committed(self, notice: Notice) -> None:
        uri = join(self._directory, f"{self._recovery}-{notice.commit_id}.json")
        marker = {
            "version": MARKER_VERSION,
            "recovery": self._recovery,
            "commit_id": notice.commit_id,
            "records": notice.records,
            "watermark": notice.watermark,
        }
        # The name is taken: an earlier attempt was killed before it could save that it had done this.
        storage_for(uri).create(uri, json.dumps(marker).encode())


class Listeners:
    """All listeners of a recovery and what each has seen."""

    def __init__(self, listeners: Sequence[Listener], states: Json) -> None:
        self._listeners = tuple(listeners)
        self._states: dict[str, Any] = {name: dict(state) for name, state in states.items()}

    @property
    def states(self) -> dict[str, Any]:
        """To be saved; of a listener that is not here any more, too."""
        return {name: dict(state) for name, state in self._states.items()}

    def tell(self, notice: Notice) -> bool:
        """Tell everybody who has not seen this commit; whether anybody's state changed."""
        behind = [each for each in self._listeners if self._states.get(each.name, {}).get(UP_TO, 0) < notice.commit_id]
        for listener in behind:
            reach("listener.before")
            listener.committed(notice)
            reach("listener.after")
            self._states[listener.name] = {UP_TO: notice.commit_id}
        return bool(behind)


def listeners_for(target: Target, recovery: str) -> tuple[Listener, ...]:
    """The listeners of a target: a done marker for a directory with manifests, none for others."""
    return (PartitionDone(target.address.rstrip("/"), recovery),) if target.kind.has_manifests else ()
