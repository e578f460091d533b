"""Channel state that a recovery staged: which local file holds which range of which object.

The index is a file of the workspace. A worker is told of it once, before a unit of the recovery; everything below opens
channels of that checkpoint as if its objects were local, in whatever thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from cdr_core.errors import Refused, Unreadable, Where
from cdr_core.flink.checkpoint import FileLocation
from cdr_core.flink.spans import Spans
from cdr_core.rescale.cells import Longs
from cdr_core.rescale.remote import COMPLETE, stream_size
from cdr_core.storage import storage_for
from cdr_core.storage.local import map_file

INDEX_VERSION = 1

_indexes: dict[str, str] = {}
"""By the SHA-256 of a checkpoint's metadata: two recoveries of one checkpoint stage the same bytes."""


def use_staged(metadata_sha256: str, index: str) -> None:
    """From now on, this checkpoint is read from what the index names; an empty one names nothing."""
    if index:
        _indexes[metadata_sha256] = index
    else:
        _indexes.pop(metadata_sha256, None)


def staged_objects(metadata_sha256: str) -> StagedObjects | None:
    """What is staged of the checkpoint, if anything is."""
    index = _indexes.get(metadata_sha256)
    return _load(index) if index else None


class StagedObjects:
    """Ranges of objects in local files; each file is mapped when a channel in it is opened."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._sizes = {uri: int(each["size"]) for uri, each in objects.items()}
        self._missing = {uri: str(each["missing"]) for uri, each in objects.items() if "missing" in each}
        self._ranges = {uri: _Ranges(each["ranges"]) for uri, each in objects.items()}

    def has(self, uri: str) -> bool:
        """Whether the object was staged; one on a local disk was not."""
        return uri in self._ranges

    def read(self, uri: str) -> bytes:
        """A whole object."""
        self._require(uri)
        ranges = self._ranges[uri]
        return b"".join(ranges.open(number).tobytes() for number in range(len(ranges.starts)))

    def limit(self, location: FileLocation) -> int:
        """Bytes that are there of the stream at a location."""
        return stream_size(location, self.size(location.uri))

    def size(self, uri: str) -> int:
        """Bytes that the object had when it was staged."""
        self._require(uri)
        return self._sizes[uri]

    def spans(self, location: FileLocation, _chunks: Longs, where: Where) -> Spans:
        """Everything that was staged of the object."""
        self._require(location.uri)
        ranges = self._ranges[location.uri]
        return Spans(ranges.starts, ranges.ends, ranges.open, where)

    def _require(self, uri: str) -> None:
        if not self.has(uri):
            raise Unreadable(f"{uri} was not staged", hint="start a new recovery")
        if uri in self._missing:
            raise Unreadable(self._missing[uri], hint=COMPLETE)


class _Ranges:
    def __init__(self, ranges: Sequence[Sequence[Any]]) -> None:
        ordered = sorted(tuple(each) for each in ranges)
        self.starts = np.array([start for start, _, _ in ordered], dtype=np.int64)
        self.ends = np.array([end for _, end, _ in ordered], dtype=np.int64)
        self._paths = [path for _, _, path in ordered]

    def open(self, number: int) -> npt.NDArray[np.uint8]:
        """Refused, not corrupt, where it is gone: the source may be well, but this recovery has lost its copy."""
        path, size = self._paths[number], int(self.ends[number] - self.starts[number])
        try:
            mapped = _mapped(path)
        except Unreadable:
            raise Refused(f"staged bytes are gone: {path}", hint="recover to another target") from None
        if len(mapped) != size:
            raise Refused(f"{path} has {len(mapped)} of {size} staged bytes", hint="recover to another target")
        return mapped


def make_index(
    sizes: Mapping[str, int], ranges: Mapping[str, Sequence[Sequence[Any]]], missing: Mapping[str, str]
) -> dict[str, Any]:
    """The index as it is stored: of each object its size and (start, end, path) of every range, or why it has none."""
    objects: dict[str, dict[str, Any]] = {
        uri: {"size": sizes[uri], "ranges": [list(each) for each in ranges.get(uri, ())]} for uri in sizes
    }
    for uri, reason in missing.items():
        objects[uri]["missing"] = reason
    return {"version": INDEX_VERSION, "objects": objects}


@lru_cache(maxsize=4)
def _load(index: str) -> StagedObjects:
    value = json.loads(storage_for(index).read(index))
    if value["version"] != INDEX_VERSION:
        raise Unreadable(f"{index} has version {value['version']}, this cdr reads {INDEX_VERSION}")
    return StagedObjects(value["objects"])


def close_staged() -> None:
    """Let go of the files."""
    _mapped.cache_clear()


@lru_cache(maxsize=64)
def _mapped(path: str) -> npt.NDArray[np.uint8]:
    return map_file(path)
