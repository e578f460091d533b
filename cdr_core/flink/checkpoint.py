"""A checkpoint as a whole: its metadata, its operators by the names users give, and the locations of its bytes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from cdr_core.errors import CorruptMetadata, SpecRefused, Where
from cdr_core.flink.channel_columns import ChannelColumns, channel_columns
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
from cdr_core.flink.operator_id import operator_id_of_uid

METADATA_FILE: Final = "_metadata"

_NAMES_SHOWN: Final = 20

_S3_CLIENTS: Final = ("s3a", "s3p", "s3n")

_OF_THE_JOB: Final = re.compile(r".*/((?:taskowned|shared|dstl|chk-(?P<number>[0-9]+))/(?P<rest>.+))", re.DOTALL)
"""Matches a file in one of the directories that Flink creates below a job's directory."""


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
    """A parsed checkpoint at a directory (a path or a URL). ``sha256`` is over the bytes of its ``_metadata``.

    ``file`` is the name of those in the directory, if another. ``exists`` returns whether an address can be read;
    without it a checkpoint is taken to lie where it was written.
    """

    directory: str
    metadata: CheckpointMetadata
    sha256: str
    file: str = METADATA_FILE
    exists: Callable[[str], bool] | None = field(default=None, compare=False, repr=False)
    _columns: dict[tuple[str, Side], ChannelColumns] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @property
    def address(self) -> str:
        """Return the address it is opened by: its directory, or the metadata file if that has another name than
        Flink's.
        """
        return self.directory if self.file == METADATA_FILE else self.metadata_address

    @property
    def metadata_address(self) -> str:
        return f"{self.directory.rstrip('/')}/{self.file}"

    def operator(self, name: str) -> OperatorState:
        """Return the operator with this uid (also where only its id is stored), else name, else 32-hex id.

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
                raise SpecRefused(
                    f"{len(found)} operators have the name {name!r}", where=where, hint=f"use an id: {ids}"
                )
        raise self._unknown(name)

    def channels(self, operator: str | OperatorState, side: Side) -> Mapping[ChannelId, ChannelSlice]:
        """Return the in-flight data of one side of an operator; see
        :func:`~cdr_core.flink.channel_state.channel_slices`.
        """
        found = self.operator(operator) if isinstance(operator, str) else operator
        return channel_slices(found, side, checkpoint=self.directory)

    def columns(self, operator: str | OperatorState, side: Side) -> ChannelColumns:
        """Return the columns of :meth:`channels`, with the same refusals; they are built once."""
        found = self.operator(operator) if isinstance(operator, str) else operator
        key = (found.operator_id, side)
        if key not in self._columns:
            self._columns[key] = channel_columns(found, side, checkpoint=self.directory)
        return self._columns[key]

    def resolve(self, handle: StreamHandle) -> Location:
        """Where the bytes of a handle are. A relative path is one below the directory that is being read from.

        An absolute one is true where the checkpoint was written. Where it was moved since, together with what lies
        beside it, and nothing is at the old address, the file beside it is meant.
        """
        match handle:
            case InlineBytes():
                return InlineLocation(handle.data)
            case RelativeFile():
                return FileLocation(f"{self.directory.rstrip('/')}/{handle.path}", 0, _known(handle.size))
            case AbsoluteFile():
                return FileLocation(self._found(handle.path), 0, _known(handle.size))
            case FileSegment():
                return FileLocation(self._found(handle.path), handle.start, handle.length)
            case EmptySegment():
                return InlineLocation(b"")
            case KeyGroupStream():
                return self._resolve_nested(handle)

    def _found(self, path: str) -> str:
        """Return the address of a file with an absolute path; a file that exists at that path is always preferred."""
        written, beside = reachable(path), self._beside(path)
        if self.exists is None or beside is None or beside.removeprefix("file://") == written.removeprefix("file://"):
            return written
        return beside if self.exists(beside) and not self.exists(written) else written

    def _beside(self, path: str) -> str | None:
        """Return the file's address if the job's directory was moved as a whole; ``None`` if it was in no such
        directory.
        """
        found = _OF_THE_JOB.fullmatch(path)
        if found is None or ".." in found[1].split("/"):
            return None
        if found["number"] is not None and int(found["number"]) == self.metadata.checkpoint_id:
            return f"{self.directory.rstrip('/')}/{found['rest']}"
        above, slash, name = self.directory.rstrip("/").rpartition("/")
        if name in ("", ".", ".."):
            return f"{self.directory.rstrip('/')}/../{found[1]}"
        return f"{above}{slash}{found[1]}"

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


def load_checkpoint(
    directory: str, metadata_bytes: bytes, file: str = METADATA_FILE, exists: Callable[[str], bool] | None = None
) -> Checkpoint:
    """Parse the bytes of a checkpoint's ``_metadata``; refuses them as :func:`read_metadata` does."""
    metadata = read_metadata(metadata_bytes, checkpoint=directory)
    return Checkpoint(directory, metadata, hashlib.sha256(metadata_bytes).hexdigest(), file, exists)


def _known(size: int) -> int | None:
    """Return the size; -1 means that the file system did not know it."""
    return size if size >= 0 else None


def reachable(path: str) -> str:
    """Return a path in storage's spelling: Flink writes local files with one slash (``file:/data``), and S3 by the
    scheme of the client that its user chose. Handles keep their own spelling.
    """
    if path.startswith("file:/") and not path.startswith("file://"):
        return "file://" + path.removeprefix("file:")
    scheme, separator, rest = path.partition("://")
    return f"s3://{rest}" if separator and scheme in _S3_CLIENTS else path
