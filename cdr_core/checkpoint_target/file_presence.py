"""Presence of the files behind state: a missing one can be neither copied nor merged, nor restored by Flink."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from cdr_core.errors import Refused, Unreadable
from cdr_core.flink.checkpoint import Checkpoint, FileLocation
from cdr_core.flink.metadata import RelativeFile
from cdr_core.flink.state import StateFile
from cdr_core.storage import storage_for

AT_ONCE: Final = 16
"""Concurrent look-ups: incremental state has thousands of files, and on S3 each is a request."""


class Presence(StrEnum):
    """The presence of a file."""

    THERE = "there"
    MISSING = "missing"
    OTHER_SIZE = "of another size than its checkpoint says"
    MOVED = "beside the checkpoint, not where that says"
    """It was moved with the checkpoint: cdr can read it, but Flink looks only at the path in the metadata."""
    UNKNOWN = "unknown"
    """cdr cannot look there, for want of a client or of permission; Flink may find it."""


@dataclass(frozen=True, slots=True)
class Found:
    """One file; ``size`` is that of the whole file, -1 if there is none."""

    presence: Presence
    size: int = -1

    @property
    def gone(self) -> bool:
        """Return whether the file cannot be read."""
        return self.presence in (Presence.MISSING, Presence.OTHER_SIZE)


def look_for(checkpoint: Checkpoint, files: Iterable[StateFile]) -> Mapping[StateFile, Found]:
    """Return the presence of each file. A transient failure of the storage raises."""
    wanted = list(dict.fromkeys(files))
    if not wanted:
        return {}
    with ThreadPoolExecutor(min(AT_ONCE, len(wanted))) as pool:
        return dict(zip(wanted, pool.map(lambda file: _look(checkpoint, file), wanted), strict=True))


def _look(checkpoint: Checkpoint, file: StateFile) -> Found:
    location = checkpoint.resolve(file)
    assert isinstance(location, FileLocation), "state in files"
    try:
        size = storage_for(location.uri).size(location.uri)
    except Unreadable:
        return Found(Presence.MISSING)
    except Refused:
        if isinstance(file, RelativeFile):
            raise  # beside a _metadata that was just read: the user has to repair something
        return Found(Presence.UNKNOWN)
    if location != replace(checkpoint, exists=None).resolve(file):
        return Found(Presence.MOVED, size)
    expected = file.size if isinstance(file, RelativeFile) else -1
    return Found(Presence.THERE if expected in (-1, size) else Presence.OTHER_SIZE, size)


def missing_of(outside: Mapping[str, Found]) -> dict[str, list[str]]:
    """Return, of files that stay outside, those that are not where Flink will look, and those that cdr
    cannot look for.
    """
    named = {"missing": (Presence.MISSING, Presence.MOVED), "unknown": (Presence.UNKNOWN,)}
    return {
        name: sorted(path for path, found in outside.items() if found.presence in presences)
        for name, presences in named.items()
    }
