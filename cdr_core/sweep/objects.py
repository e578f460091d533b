"""A workspace on S3, as a sweep sees it: only what lies below a recovery's own place, by epoch."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from cdr_core.errors import CdrError
from cdr_core.storage.s3 import S3Storage
from cdr_core.sweep.report import Left

_EPOCH = re.compile(r"^e(\d+)/.")


@dataclass(frozen=True, slots=True)
class Found:
    """A file or object of an attempt: its path or address."""

    name: str
    epoch: int
    bytes: int


def objects_below(root: str) -> tuple[list[Found], list[Left]]:
    """The objects of every attempt, and what lies between them and is no attempt's."""
    found: list[Found] = []
    left: list[Left] = []
    for uri, size in S3Storage().walk(root):
        match = _EPOCH.match(uri.removeprefix(f"{root}/"))
        if match:
            found.append(Found(uri, int(match.group(1)), size))
        else:
            left.append(Left(uri, "not an object of an attempt"))
    return found, left


def strange_places(workspace: str, known: Collection[str]) -> Iterator[Left]:
    """What lies beside the recoveries' own places; several databases may share a workspace, so nothing of it goes."""
    try:
        places = S3Storage().directories(workspace)
    except CdrError as error:
        yield Left(workspace, f"it cannot be looked at: {error.what}")
        return
    for place in places:
        if place.rpartition("/")[2] not in known:
            yield Left(place, "no recovery of this name is in the database")
