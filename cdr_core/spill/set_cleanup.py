"""The end of a spill set: its files go when the last grant does.

Row first, then files: the transaction that releases the last grant makes the set RELEASED, after which no one gets a
grant any more, and only then are files deleted. A crash in between leaves files that no one can need; the next sweep
removes them. Deleting is repeatable and never an error of the recovery: whatever cannot be deleted now is left to the
sweep.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cdr_core.errors import CdrError
from cdr_core.faults import reach
from cdr_core.metadata.states import HAND_OVER, SpillSetState
from cdr_core.spill.reservations import LEDGER, give_back
from cdr_core.spill.tiers import Tier
from cdr_core.storage import canonical, is_local, storage_for
from cdr_core.storage.local import RealNames

if TYPE_CHECKING:
    from cdr_core.metadata import Repository, SpillSet


def release(repository: Repository, recovery_id: str, epoch: int, set_id: int, holder: str) -> bool:
    """Release a grant and, if it was the last one, delete the set's files; whether it was.

    ``Fenced`` for an attempt that is over. Releasing twice, or what was never held, is harmless.
    """
    with repository.fenced(recovery_id, epoch) as transaction:
        last = transaction.release_grant(set_id, holder)
    reach("release.row")
    if last:
        delete_released(repository, recovery_id)
    return last


def delete_released(repository: Repository, recovery_id: str) -> int:
    """Delete the files of all sets of a recovery that are not needed; return the bytes freed. For callers that released
    grants in a transaction of their own, after it.
    """
    sets = repository.spill_sets(recovery_id)
    over = [each for each in sets if not is_needed(each)]
    # One that was lost, made again and then found after all has two rows.
    kept = {name for each in sets if is_needed(each) for name in names_of(each)} if over else set()
    return sum(delete_files(recovery_id, each, kept) for each in over)


def is_needed(spill_set: SpillSet) -> bool:
    """Whether it may still be read. One that was lost is kept by its holder, but not by the hand-over,
    which went to the set that took its place: what is left of it takes room that others lack.
    """
    if spill_set.state is SpillSetState.LOST:
        return any(grant.live and grant.holder != HAND_OVER for grant in spill_set.grants)
    return spill_set.state is SpillSetState.SEALED


def delete_files(recovery_id: str, spill_set: SpillSet, kept: Collection[str] = ()) -> int:
    """Delete what a set's row and manifest name, as far as it is there and not ``kept``; bytes freed. The manifest goes
    last: it is what finds the rest after a crash.
    """
    freed = 0
    names = [name for name in names_of(spill_set) if name not in kept]
    for name in names:
        if attempt_of(name, recovery_id) is not None:
            freed += delete_file(name, recovery_id)
            reach("release.file")
    ours = [name for name in names if is_local(name) and attempt_of(name, recovery_id) is not None]
    for directory in {Path(name).parent for name in ours}:
        with suppress(OSError):  # not empty: a foreign file is in it, or it is gone already
            directory.rmdir()
    return freed


def delete_file(name: str, recovery_id: str) -> int:
    """Delete one file of an attempt and end its reservation; bytes freed, 0 if it was not there or cannot go."""
    if not is_local(name):
        return _delete_object(name)
    path = Path(name)
    try:
        size = path.lstat().st_size
        path.unlink()
    except OSError:
        return 0
    found = attempt_of(name, recovery_id)
    if found is not None and (Path(found[0]) / LEDGER).exists():
        with suppress(OSError):
            give_back(Tier(found[0], None), recovery_id, found[1], size)
    return size


def _delete_object(uri: str) -> int:
    try:
        size = storage_for(uri).size(uri)
        storage_for(uri).delete(uri)
    except CdrError:
        return 0
    return size


def names_of(spill_set: SpillSet) -> tuple[str, ...]:
    """The real name of every file of a set: those of its row, those its manifest names, the manifest itself last."""
    real = RealNames()
    manifest = real.of(spill_set.manifest)
    named = [file.path for file in spill_set.files]
    with suppress(CdrError, ValueError):
        named += strings(json.loads(storage_for(manifest).read(manifest)))
    ours = dict.fromkeys(real.of(name) for name in named if is_address(name))
    return (*(name for name in ours if name != manifest), manifest)


def is_address(name: str) -> bool:
    """Whether a string of a manifest or a row is where something lies: a path, or an object on S3."""
    return canonical(name).startswith(("/", "s3://"))


def strings(value: object) -> Iterator[str]:
    """All strings in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from strings(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from strings(each)


def attempt_of(name: str, recovery_id: str) -> tuple[str, int] | None:
    """The tier (or workspace) and epoch of a path or URI ``TIER/RECOVERY/eEPOCH/…``; ``None`` for any other."""
    match = re.match(rf"^((?:/|s3://).*)/{re.escape(recovery_id)}/e(\d+)/.", name)
    return None if match is None or ".." in Path(name).parts else (match.group(1), int(match.group(2)))
