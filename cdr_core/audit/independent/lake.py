"""Tables that others may write to as well: which of their files hold a recovery's rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from cdr_core.audit.independent.tables import DataFile, Owner, choose_recovery
from cdr_core.errors import CdrError, Unreadable


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A commit of a table: its properties, and whether it only added files."""

    properties: Mapping[str, str]
    appended: bool


@dataclass(frozen=True, slots=True)
class LakeFile:
    """A file that a reader sees, and the commit that added it (``None`` = no longer known)."""

    file: DataFile
    snapshot: Snapshot | None


class LakeTable:
    """See :class:`cdr_core.audit.independent.tables.Table`. Files of a snapshot have no order."""

    ordered = False

    def __init__(self, owner: Owner, snapshots: list[Snapshot], files: list[LakeFile]) -> None:
        self._recovery = choose_recovery(owner, [snapshot.properties for snapshot in snapshots])
        self._snapshots, self._files = snapshots, files

    def files(self) -> list[DataFile]:
        return [found.file for found in self._files if self._ours(found)]

    def left_aside(self) -> int:
        return sum(not self._ours(found) for found in self._files)

    def properties(self) -> Mapping[str, str]:
        ours = [s.properties for s in self._snapshots if s.properties.get("cdr.recovery") == self._recovery]
        return ours[-1] if ours else {}

    def _ours(self, found: LakeFile) -> bool:
        """Whoever appends without saying for which recovery is somebody else; whoever rewrites files may hold ours.

        When the commit has expired, the file's name tells, in which cdr writes the recovery.
        """
        if self._recovery is None:
            return True
        if found.snapshot is None:
            return self._recovery in found.file.uri
        signed = found.snapshot.properties.get("cdr.recovery")
        return signed == self._recovery or (signed is None and not found.snapshot.appended)


@contextmanager
def explained(target: str) -> Iterator[None]:
    """Whatever a library raises: the output cannot be read."""
    try:
        yield
    except CdrError:
        raise
    except Exception as error:
        said = str(error).partition("\n")[0] or type(error).__name__
        raise Unreadable(f"{target} cannot be read: {said}", hint="check the table and its catalog") from error
