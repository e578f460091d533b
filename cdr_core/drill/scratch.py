"""Where a drill puts what it recovers: a place of its own, named after it, that is removed whatever came of it.

It is never a production output: it lies in the drills' scratch and bears the drill's id. And because the target is half
of a recovery's identity, a drill never attaches to a recovery in earnest of the same checkpoint.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cdr_core.drill.plan import DrillPlan
from cdr_core.errors import CdrError, Refused, StorageError
from cdr_core.settings import Settings
from cdr_core.storage import is_local, join, storage_for
from cdr_core.storage.local import local_path

DRILL_ID = re.compile(r"d-[0-9a-f]{10,64}")


def place_of(drill_id: str, settings: Settings) -> str:
    """The drill's own directory or address."""
    if not DRILL_ID.fullmatch(drill_id):
        raise Refused(f"{drill_id!r} is not the id of a drill", hint="run: cdr drill list")
    return join(settings.drill_scratch, drill_id)


def target_of(plan: DrillPlan, settings: Settings, drill_id: str) -> str:
    """Where the drill's recovery publishes: rows where a check looks at them, a checkpoint where Flink restores it."""
    place = place_of(drill_id, settings)
    if plan.checks.flink_restore and settings.drill_flink:
        return f"checkpoint:{join(place, 'checkpoint')}"
    return f"parquet:{join(place, 'output')}" if plan.checks.need_rows else "none:"


def is_there(place: str) -> bool:
    return local_path(place).is_dir() if is_local(place) else bool(next(_objects(place), None))


def size_of(place: str) -> int:
    """Bytes in it, as far as they can be counted."""
    if not is_local(place):
        try:
            return sum(size for _, size in _objects(place))
        except CdrError:
            return 0
    total = 0
    for parent, _, names in os.walk(local_path(place)):
        for name in names:
            with suppress(OSError):  # another process may remove it meanwhile
                total += Path(parent, name).lstat().st_size
    return total


def remove(place: str, drill_id: str) -> None:
    """Remove the drill's own place and nothing else; one that is gone already is fine, one that stays is an error."""
    if place.rstrip("/").rpartition("/")[2] != drill_id or not DRILL_ID.fullmatch(drill_id):
        raise Refused(f"{place} is not the scratch of drill {drill_id}, so it stays")
    if not is_local(place):
        for uri, _ in _objects(place):
            storage_for(uri).delete(uri)
        return
    path = local_path(place)
    if path.is_symlink():
        raise Refused(f"{path} is a link, which cdr makes none of, so it stays")
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot remove {path}: {error.strerror}", hint="cdr sweep tries again") from error


def _objects(place: str) -> Iterator[tuple[str, int]]:
    from cdr_core.storage.s3 import S3Storage

    return S3Storage().walk(place)
