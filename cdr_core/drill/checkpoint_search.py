"""The complete checkpoints below a directory, local or on S3: that of one job, or of many jobs beside each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from cdr_core.drill.choice import Candidate
from cdr_core.errors import Refused, Unreadable
from cdr_core.storage import is_local, join, storage_for
from cdr_core.storage.local import explained, local_path

METADATA = "_metadata"
MOST_DIRECTORIES = 10_000
_NUMBERED = re.compile(r"^(?:chk-|savepoint-)?(\d+)$")
_CHECKPOINT = re.compile(r"^chk-\d+$")


def candidates(place: str) -> tuple[Candidate, ...]:
    """``place`` itself if it is a checkpoint, else ``chk-N`` in it, or in its directories; those without metadata are
    not complete and left out. A place that is not there is an error.
    """
    own = _candidate(place.rstrip("/"))
    if own is not None:
        return (own,)
    found = list(islice(_checkpoints(place), MOST_DIRECTORIES + 1))
    if len(found) > MOST_DIRECTORIES:
        raise Refused(f"{place} holds more than {MOST_DIRECTORIES:,} checkpoints", hint="give the directory of one job")
    return tuple(each for directory in found if (each := _candidate(directory)) is not None)


def _checkpoints(place: str) -> Iterator[str]:
    for directory in _directories(place):
        if _CHECKPOINT.match(_name(directory)):
            yield directory
        else:
            yield from (inner for inner in _directories(directory) if _CHECKPOINT.match(_name(inner)))


def _directories(place: str) -> list[str]:
    if not is_local(place):
        from cdr_core.storage.s3 import S3Storage

        return list(S3Storage().directories(place))
    path = local_path(place)
    if not path.is_dir():
        raise Unreadable(f"{place} is no directory", hint="check the path")
    with explained(path, "list"):
        return sorted(str(entry) for entry in path.iterdir() if _is_directory(entry))


def _is_directory(entry: Path) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _candidate(directory: str) -> Candidate | None:
    uri = join(directory, METADATA)
    try:
        found = storage_for(uri).stat(uri)
    except Unreadable:
        return None
    match = _NUMBERED.match(_name(directory))
    return Candidate(directory, int(match.group(1)) if match else 0, found.modified)


def _name(directory: str) -> str:
    return directory.rstrip("/").rpartition("/")[2]
