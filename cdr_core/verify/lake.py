"""Tables with other writers: the files in them that hold a recovery's rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from cdr_core.errors import CdrError, Unreadable
from cdr_core.verify.tables import RECOVERY, DataFile, Owner, Publication, choose_recovery, is_of

_NAMED = re.compile(r"cdr[-/](r-[0-9a-f]+(?:-g[0-9]+)?)[-/]")
"""Finds the recovery in the name of a file that cdr wrote."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A commit of a table: its number, its properties, whether it only added files, and the library's files of it."""

    number: int
    properties: Mapping[str, str]
    appended: bool
    metadata: tuple[DataFile, ...] = ()


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file that readers of the table see, and the commit that added it (``None`` = no longer known)."""

    file: DataFile
    snapshot: Snapshot | None


class LakeTable:
    """See :class:`cdr_core.verify.tables.Table`. Files of a snapshot have no order."""

    ordered = False

    def __init__(self, owner: Owner, snapshots: list[Snapshot], files: list[LakeFile]) -> None:
        expired = [found.file.uri for found in files if found.snapshot is None]
        forgotten = {named[1] for uri in expired if (named := _NAMED.search(uri))}
        forgotten |= {owner.recovery for uri in expired if owner.recovery and owner.recovery in uri}
        self._recovery = choose_recovery(owner, [snapshot.properties for snapshot in snapshots], frozenset(forgotten))
        self._snapshots, self._files = snapshots, files

    def files(self) -> list[DataFile]:
        return [found.file for found in self._files if self._ours(found)]

    def left_aside(self) -> int:
        return sum(not self._ours(found) for found in self._files)

    def unsigned(self) -> list[DataFile]:
        aside = [found for found in self._files if not self._ours(found)]
        return [
            found.file for found in aside if found.snapshot is not None and RECOVERY not in found.snapshot.properties
        ]

    def publications(self) -> list[Publication]:
        added: dict[int, list[DataFile]] = {}
        for found in self._files:
            if found.snapshot is not None:
                added.setdefault(found.snapshot.number, []).append(found.file)
        whole = not any(self._ours(found) and not self._signed(found.snapshot) for found in self._files)
        return [
            Publication(
                f"@{each.number}", each.properties, tuple(added.get(each.number, ())), whole, metadata=each.metadata
            )
            for each in self._snapshots
            if self._signed(each)
        ]

    def forgot(self, location: str) -> bool:
        return location.rpartition("@")[2] not in {str(snapshot.number) for snapshot in self._snapshots}

    def _signed(self, snapshot: Snapshot | None) -> bool:
        """Return whether the commit's properties name the recovery."""
        return snapshot is not None and is_of(self._recovery, snapshot.properties)

    def _ours(self, found: LakeFile) -> bool:
        """Return whether the file may hold rows of the recovery: appends by others do not, files rewritten by others
        may.

        If the commit has expired, the recovery in the file's name decides.
        """
        if self._recovery is None:
            return True
        if found.snapshot is None:
            return self._recovery in found.file.uri
        if RECOVERY not in found.snapshot.properties:
            return not found.snapshot.appended
        return self._signed(found.snapshot)


@contextmanager
def as_unreadable(target: str) -> Iterator[None]:
    """Raise ``Unreadable`` for any error of the table's library."""
    try:
        yield
    except CdrError:
        raise
    except Exception as error:
        message = str(error).partition("\n")[0] or type(error).__name__
        raise Unreadable(f"{target} cannot be read: {message}", hint="check the table and its catalog") from error
