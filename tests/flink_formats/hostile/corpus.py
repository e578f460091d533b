"""The files that are damaged: metadata of every version and shape, and small checkpoints with their channel state."""

from __future__ import annotations

import io
import random
import tarfile
import tempfile
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from cdr_core.flink.checkpoint import Checkpoint, FileLocation, load_checkpoint
from cdr_core.flink.metadata import Side, SubtaskState
from cdr_core.flink.metadata.writer import encode_metadata
from tests.flink_formats.generate.made import exchange, make, spec_of
from tests.flink_formats.metadata import samples
from tests.flink_formats.metadata.samples import metadata, operator

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
LARGEST = 64 * 1024
"""Bytes of a real file that is taken: an example should take a millisecond."""
DIRECTORY = "chk"
"""What every checkpoint here calls its own place."""


@dataclass(frozen=True)
class Item:
    """A file and what it belongs to.

    Metadata has ``files``, the channel-state files beside it, if there are any. A channel-state file has a
    ``checkpoint`` that names it as ``name``, and the type of the ``record``s in it.
    """

    name: str
    data: bytes
    files: tuple[tuple[str, bytes], ...] = ()
    checkpoint: Checkpoint | None = None
    record: str = "OPAQUE"

    @property
    def is_metadata(self) -> bool:
        return self.checkpoint is None

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
                    if isinstance(location, FileLocation) and location.uri == f"{DIRECTORY}/{self.name}":
                        found += [place for offset in piece.offsets for place in (offset, offset + 4)]
        return found


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
                    found.append(Item(member.name, file.read()))
    return found


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
            path = make(Path(folder) / name, spec_of(exchange("main", "gen", "slow", record)), "2", **options).path
            head = (path / "_metadata").read_bytes()
            files = [(file.name, file.read_bytes()) for file in sorted(path.iterdir()) if file.name != "_metadata"]
            checkpoint = load_checkpoint(DIRECTORY, head)
            found.append(Item(name, head, files=tuple(files)))
            found += [Item(file, data, checkpoint=checkpoint, record=record) for file, data in files]
    return found
