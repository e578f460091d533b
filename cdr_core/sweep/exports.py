"""What an export that died left in the directory it was told to write to.

An export notes in the database where it writes before it does. Its own files bear its name; copies of the source's
files are listed in the note, except those that were there before. What a ``_metadata`` names is never a leftover.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from cdr_core.commit.sinks.checkpoint import file_name
from cdr_core.errors import CdrError
from cdr_core.metadata import Export, Repository
from cdr_core.storage import canonical, is_local, join, storage_for
from cdr_core.storage.local import RealNames, host_id, is_temporary
from cdr_core.sweep.objects import Found
from cdr_core.sweep.target import METADATA, names_in

WHY = "an export that died left it, and no _metadata names it"


def prefix(recovery_id: str, export: Export) -> str:
    """How the files that an export writes anew begin, as a name that a sink takes."""
    return f"{recovery_id}/x{export.checkpoint_id}-{export.name}"


def dead(repository: Repository, recovery_id: str) -> list[Export]:
    """Exports that no process goes on with, as far as this host can see where they wrote."""
    return [
        export
        for export in repository.exports(recovery_id)
        if not export.live and (not is_local(export.directory) or export.host == host_id())
    ]


def remains(repository: Repository, recovery_id: str, export: Export) -> list[Found]:
    """Files of an export that is over, in its directory, that no ``_metadata`` names."""
    directory = canonical(export.directory)
    if is_local(directory) and not Path(directory).is_dir():
        return []
    metadata, real = join(directory, METADATA), RealNames().of
    shown = storage_for(metadata).read(metadata) if storage_for(metadata).exists(metadata) else b""
    others = [each for each in repository.exports(recovery_id) if each.live and each.name != export.name]
    # By the name of a file in it: of a path that is a link itself, only then is the link followed.
    shares = any(real(join(each.directory, METADATA)) == real(metadata) for each in others)
    mine = file_name(prefix(recovery_id, export))
    return [
        Found(name, 0, storage_for(name).size(name))
        for name in names_in(directory)
        if _is_left(name.rpartition("/")[2], mine, () if shares else export.copies, shown)
    ]


def _is_left(file: str, mine: str, copies: Sequence[str], shown: bytes) -> bool:
    """``copies``: none where another export writes to the same directory, which may need them."""
    if is_temporary(Path(file)):
        whose = file[1:].rsplit(".", 2)[0]
        return whose.startswith(mine) or whose in copies
    return (file.startswith(mine) or file in copies) and file.encode() not in shown


def remove_remains(repository: Repository, recovery_id: str, export: Export) -> None:
    """Remove what an export left that is over, and the directory if nothing else is in it."""
    for file in remains(repository, recovery_id, export):
        storage_for(file.name).delete(file.name)
    if is_local(export.directory):
        with suppress(OSError):
            Path(export.directory).rmdir()


def sweep_exports(repository: Repository, recovery_id: str, *, dry_run: bool = False) -> Iterator[tuple[Found, bool]]:
    """Find and remove what dead exports left; each file and whether it is gone. What cannot be removed stays noted."""
    for export in dead(repository, recovery_id):
        try:
            found = remains(repository, recovery_id, export)
            if not dry_run:
                remove_remains(repository, recovery_id, export)
                repository.end_export(recovery_id, export.name)
        except CdrError:
            continue
        yield from ((file, not dry_run) for file in found)
