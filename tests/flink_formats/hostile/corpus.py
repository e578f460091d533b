"""The files that are damaged: metadata of every version and shape, and small checkpoints with their channel state."""

from __future__ import annotations

import io
import random
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from cdr_core.flink.checkpoint import Checkpoint, FileLocation, load_checkpoint, reachable
from cdr_core.flink.metadata import FileSegment, RelativeFile, Side, SubtaskState
from cdr_core.flink.metadata.writer import encode_metadata
from tests.flink_formats.generate.made import exchange, make, spec_of
from tests.flink_formats.metadata import samples
from tests.flink_formats.metadata.samples import metadata, operator
from tests.support.checkpoints import FIXTURES, SPEC_OF
from tests.support.relocate import everywhere

Files = tuple[tuple[str, bytes], ...]
"""Name and bytes."""

LARGEST = 64 * 1024
"""Bytes of a real file that is taken: an example should take a millisecond."""
DIRECTORY = "chk"
"""What every checkpoint here calls its own place."""
METADATA = "_metadata"
_GONE = "file:/gone/"
"""Where merged files were, by the paths in the metadata; now they are beside the checkpoint."""


@dataclass(frozen=True)
class Item:
    """A file and what it belongs to.

    ``files`` are the channel-state files of the checkpoint, if there are any, and ``spec`` is the job spec that fits. A
    channel-state file has a ``checkpoint`` that names it as ``name``, that one's ``head``, and the type of the
    ``record``s in it.
    """

    name: str
    data: bytes
    files: tuple[tuple[str, bytes], ...] = ()
    checkpoint: Checkpoint | None = None
    record: str = "OPAQUE"
    spec: str = ""
    head: bytes = b""

    @property
    def is_metadata(self) -> bool:
        return self.checkpoint is None

    def all_files(self, data: bytes) -> dict[str, bytes]:
        """The checkpoint by name, with ``data`` in the place of this file."""
        if self.is_metadata:
            return {METADATA: data, **dict(self.files)}
        return {METADATA: self.head, **dict(self.files), self.name: data}

    @cached_property
    def fields(self) -> list[int]:
        """Places of length fields: of chunks, and of the first record of each, where that is where one begins."""
        if self.checkpoint is None:
            return []
        found = [0]
        for channel_operator in self.checkpoint.metadata.operators:
            for side in Side:
                for piece in self.checkpoint.channels(channel_operator, side).values():
                    location = self.checkpoint.resolve(piece.delegate)
                    if isinstance(location, FileLocation) and location.uri == uri_of(self.name):
                        found += [location.base + offset + more for offset in piece.offsets for more in (0, 4)]
        return found


def uri_of(name: str) -> str:
    """The address of a file by what the metadata says; one with a folder in its name was moved."""
    return reachable(_GONE + name) if "/" in name else f"{DIRECTORY}/{name}"


def choose(rng: random.Random) -> Item:
    """Metadata and channel state as often as each other, though there are more files of one kind."""
    wanted = rng.random() < 0.5
    return rng.choice([item for item in items() if item.is_metadata == wanted])


@lru_cache(maxsize=1)
def items() -> tuple[Item, ...]:
    """The same in every process."""
    return (*_made_metadata(), *_real_metadata(), *_made_checkpoints())


def _made_metadata() -> list[Item]:
    values = {
        "everything": samples.everything(),
        "legacy": samples.legacy(),
        "single": metadata(operator(SubtaskState(1, input_channels=[samples.CHANNEL_HANDLES["single"]])), version=3),
        "plain": metadata(operator(SubtaskState(0)), version=4),
    }
    return [Item(name, encode_metadata(value)) for name, value in values.items()]


def _real_metadata() -> list[Item]:
    found = []
    for archive in sorted(FIXTURES.glob("flink-*/*.tar.gz")):
        with tarfile.open(archive) as tar:
            for member in sorted(tar.getmembers(), key=lambda each: each.name):
                if member.name.endswith("/chk-1/_metadata") and member.size <= LARGEST:
                    file = tar.extractfile(member)
                    assert file is not None
                    found.append(Item(member.name, file.read(), spec=_spec(archive.name)))
    return found


def _spec(name: str) -> str:
    """Of a shipped checkpoint; nothing where none fits."""
    file = FIXTURES / "specs" / f"{SPEC_OF.get(name[0], name[0])}.yaml"
    return file.read_text() if file.is_file() else ""


SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "tuple": ("TUPLE<LONG, STRING>", {"size": "3kB", "buffer": "256", "record_bytes": "20-60"}),
    "row": ("ROWDATA<id BIGINT, name STRING>", {"size": "2kB", "buffer": "128", "record_bytes": "20-60"}),
    "inline": ("TUPLE<LONG, STRING>", {"size": "2kB", "inline": True, "record_bytes": "20-60"}),
    "version 3": ("TUPLE<LONG, STRING>", {"size": "2kB", "version": 3, "buffer": "128", "record_bytes": "20-60"}),
}


def _made_checkpoints() -> list[Item]:
    found: list[Item] = []
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(io.StringIO()):
        for name, (record, options) in SHAPES.items():
            spec = spec_of(exchange("main", "gen", "slow", record))
            path = make(Path(folder) / name, spec, "2", **options).path
            head = (path / METADATA).read_bytes()
            files = tuple((file.name, file.read_bytes()) for file in sorted(path.iterdir()) if file.name != METADATA)
            found += _items_of(name, head, files, record, spec)
            if name == "row":
                found += _items_of("merged", *_merged(head, files), record, spec)
    return found


def _items_of(name: str, head: bytes, files: Files, record: str, spec: str) -> Iterator[Item]:
    yield Item(name, head, files, spec=spec)
    checkpoint = load_checkpoint(DIRECTORY, head)
    for file, data in files:
        yield Item(file, data, files, checkpoint, record, spec, head)


def _merged(head: bytes, files: Files) -> tuple[bytes, Files]:
    """The same with all channel state in segments of one file, as file merging has it, and other bytes around them."""
    name, data = "taskowned/tm/merged", b"other state"
    segments: dict[str, FileSegment] = {}
    for file, held in files:
        segments[file] = FileSegment(len(data), len(held), 0, _GONE + name, file)
        data += held + b"more"
    value = load_checkpoint(DIRECTORY, head).metadata
    moved = everywhere(value, lambda part: segments[part.path] if isinstance(part, RelativeFile) else part)
    return encode_metadata(moved), ((name, data),)
