"""What dead drills left: they are ended, and their scratch goes. With the sweep of recoveries, all of a sweep."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cdr_core.drill.finish import clean_up, end
from cdr_core.drill.scratch import DRILL_ID, is_there, place_of, size_of
from cdr_core.drill.verdict import Failure, FailureKind
from cdr_core.errors import CdrError
from cdr_core.metadata import Drill, Repository
from cdr_core.settings import Settings
from cdr_core.spark.processes import is_running
from cdr_core.storage import is_local
from cdr_core.storage.local import host_id, local_path
from cdr_core.sweep import Left, Leftover, Report, sweep
from cdr_core.sweep.report import join

GRACE = timedelta(hours=1)
"""A drill that was given up starts nothing more; a process that still worked then has had this long to notice."""

PAGE = 1000
DEAD = "its drill is dead: the process that ran it is gone"
OVER = "its drill is over"


@dataclass(frozen=True, slots=True)
class Swept:
    """``ended``: drills that were found dead, and have their verdict now (or would have, in a dry run)."""

    report: Report
    ended: tuple[str, ...]


def sweep_all(repository: Repository, settings: Settings, *, dry_run: bool = False) -> Swept:
    """Dead drills first, because their recoveries are over with them; then everything that recoveries left."""
    now = datetime.now(UTC)
    dead = {drill.id for drill in _unfinished(repository) if is_dead(drill, now)}
    left: list[Left] = []
    found = list(_scratches(repository, settings, dead, left))
    for drill_id in sorted(dead) if not dry_run else ():
        try:
            end(
                repository,
                settings,
                drill_id,
                Failure(FailureKind.SURROUNDINGS, "The process that ran the drill is gone."),
            )
        except CdrError as error:
            left.append(Left(drill_id, f"its drill cannot be ended: {error.what}"))
    leftovers = [_removed(repository, settings, leftover) if not dry_run else leftover for leftover in found]
    rest = sweep(repository, settings, dry_run=dry_run)
    return Swept(join([Report(tuple(leftovers), tuple(left)), rest]), tuple(sorted(dead)))


def is_dead(drill: Drill, now: datetime) -> bool:
    """Whether no process will end a drill that has no result: its process is gone, or its time is long over.

    A drill of another host, or one that names no process, is believed to live until its time is over.
    """
    if drill.result is not None:
        return False
    process = drill.args.process
    if process and drill.args.host == host_id() and not is_running(process.pid, process.started or ""):
        return True
    give_up_s = drill.args.give_up_s
    return give_up_s is not None and now > drill.started_at + timedelta(seconds=give_up_s) + GRACE


def _scratches(repository: Repository, settings: Settings, dead: set[str], left: list[Left]) -> Iterator[Leftover]:
    for name in _names(settings, left):
        drill = repository.find_drill(name) if DRILL_ID.fullmatch(name) else None
        place = f"{settings.drill_scratch.rstrip('/')}/{name}"
        if drill is None or drill.args.scratch != place:
            left.append(Left(place, "no drill of this name is in the database"))
        elif is_local(place) and drill.args.host != host_id():
            left.append(Left(place, "it is on another host"))
        elif drill.result is not None or drill.id in dead:
            why = DEAD if drill.id in dead else OVER
            yield Leftover(place, size_of(place), drill.recovery_id or drill.id, 0, why, True, False)


def _names(settings: Settings, left: list[Left]) -> list[str]:
    root = settings.drill_scratch
    try:
        if is_local(root):
            path = local_path(root)
            entries: list[Path] = sorted(path.iterdir()) if path.is_dir() else []
            return [entry.name for entry in entries if entry.is_dir() and not entry.is_symlink()]
        from cdr_core.storage.s3 import S3Storage

        return [place.rpartition("/")[2] for place in S3Storage().directories(root)]
    except (CdrError, OSError) as error:
        left.append(Left(root, f"it cannot be looked at: {error}"))
        return []


def _removed(repository: Repository, settings: Settings, leftover: Leftover) -> Leftover:
    drill = repository.drill(leftover.path.rpartition("/")[2])
    clean_up(repository, settings, drill)
    try:
        gone = not is_there(place_of(drill.id, settings))
    except CdrError:
        gone = False  # unknown, so the next sweep looks again
    return Leftover(leftover.path, leftover.bytes, leftover.recovery, 0, leftover.why, True, gone)


def _unfinished(repository: Repository) -> Iterator[Drill]:
    offset = 0
    while page := repository.drills(PAGE, offset, unfinished=True):
        yield from page
        offset += len(page)
