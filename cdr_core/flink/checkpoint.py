"""A checkpoint as a whole: its metadata, its operators by the names people use, and where its bytes are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cdr_core.errors import CorruptMetadata, SpecRefused, Where
from cdr_core.flink.channel_state import ChannelId, ChannelSlice, channel_slices
from cdr_core.flink.metadata import (
    AbsoluteFile,
    CheckpointMetadata,
    EmptySegment,
    FileSegment,
    InlineBytes,
    KeyGroupStream,
    OperatorState,
    RelativeFile,
    Side,
    StreamHandle,
    read_metadata,
)
from cdr_core.flink.uid import operator_id_of_uid

METADATA_FILE: Final = "_metadata"

_NAMES_SHOWN: Final = 20

_S3_CLIENTS: Final = ("s3a", "s3p", "s3n")


@dataclass(frozen=True, slots=True)
class InlineLocation:
    """Bytes that are in the metadata itself."""

    data: bytes


@dataclass(frozen=True, slots=True)
class FileLocation:
    """``length`` bytes from ``base`` of the object at ``uri``; ``None`` is "to its end"."""

    uri: str
    base: int
    length: int | None


Location = InlineLocation | FileLocation


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A parsed checkpoint at a directory (a path or a URL). ``sha256`` is over the bytes of its ``_metadata``."""

    directory: str
    metadata: CheckpointMetadata
    sha256: str

    def operator(self, name: str) -> OperatorState:
        """The operator with this uid (also where only its id is stored), else name, else 32-hex id.

        Refuses a name that nothing or more than one operator has.
        """
        operators = self.metadata.operators
        hashed = operator_id_of_uid(name)
        for found in (
            [operator for operator in operators if operator.uid == name or operator.operator_id == hashed],
            [operator for operator in operators if operator.name == name],
            [operator for operator in operators if operator.operator_id == name.lower()],
        ):
            if len(found) == 1:
                return found[0]
            if found:
                ids = ", ".join(operator.operator_id for operator in found)
                where = Where(checkpoint=self.directory, operator=name)
                raise SpecRefused(f"{len(found)} operators answer to {name!r}", where=where, hint=f"use an id: {ids}")
        raise self._unknown(name)

    def channels(self, operator: str | OperatorState, side: Side) -> Mapping[ChannelId, ChannelSlice]:
        """The in-flight data of one side of an operator; see :func:`~cdr_core.flink.channel_state.channel_slices`."""
        found = self.operator(operator) if isinstance(operator, str) else operator
        return channel_slices(found, side, checkpoint=self.directory)

    def resolve(self, handle: StreamHandle) -> Location:
        """Where the bytes of a handle are. A relative path is one below the directory that is being read from."""
        match handle:
            case InlineBytes():
                return InlineLocation(handle.data)
            case RelativeFile():
                return FileLocation(f"{self.directory.rstrip('/')}/{handle.path}", 0, _known(handle.size))
            case AbsoluteFile():
                return FileLocation(_reachable(handle.path), 0, _known(handle.size))
            case FileSegment():
                return FileLocation(_reachable(handle.path), handle.start, handle.length)
            case EmptySegment():
                return InlineLocation(b"")
            case KeyGroupStream():
                return self._resolve_nested(handle)

    def _resolve_nested(self, handle: KeyGroupStream) -> Location:
        if handle.delegate is None:
            raise CorruptMetadata("a key-group handle names no stream", where=Where(checkpoint=self.directory))
        return self.resolve(handle.delegate)

    def _unknown(self, name: str) -> SpecRefused:
        known = sorted(operator.label for operator in self.metadata.operators)
        shown = ", ".join(known[:_NAMES_SHOWN]) + (", …" if len(known) > _NAMES_SHOWN else "")
        return SpecRefused(
            f"the checkpoint has no operator {name!r}",
            where=Where(checkpoint=self.directory),
            hint=f"it has {shown or 'none at all'}",
        )


def load_checkpoint(directory: str, metadata_bytes: bytes) -> Checkpoint:
    """Parse the bytes of a checkpoint's ``_metadata``; refuses them as :func:`read_metadata` does."""
    metadata = read_metadata(metadata_bytes, checkpoint=directory)
    return Checkpoint(directory, metadata, hashlib.sha256(metadata_bytes).hexdigest())


def _known(size: int) -> int | None:
    """Flink notes -1 where the file system could not tell."""
    return size if size >= 0 else None


def _reachable(path: str) -> str:
    """As storage spells it: Flink writes local files with one slash (``file:/data``), and S3 by the name of the client
    that its user chose. Handles keep their own spelling.
    """
    if path.startswith("file:/") and not path.startswith("file://"):
        return "file://" + path.removeprefix("file:")
    scheme, separator, rest = path.partition("://")
    return f"s3://{rest}" if separator and scheme in _S3_CLIENTS else path
