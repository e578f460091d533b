"""Looking for leftovers and removing them. The decisions are in ``decide``; here are the disks, and in ``objects`` S3.

A sweep never fails a recovery: what cannot be looked at or removed is reported and left to the next one.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from cdr_core.errors import CdrError
from cdr_core.log import with_fields
from cdr_core.metadata import Recovery, RecoveryState, Repository
from cdr_core.settings import Settings
from cdr_core.spill.reservations import LEDGER, settle
from cdr_core.spill.set_cleanup import attempt_of, delete_file
from cdr_core.spill.tiers import Tier
from cdr_core.storage import is_local, storage_for
from cdr_core.storage.local import RealNames, host_id, local_path
from cdr_core.sweep import exports, target
from cdr_core.sweep.decide import Standing, judge
from cdr_core.sweep.objects import Found, objects_below, strange_places
from cdr_core.sweep.references import local_root, remote_root, standing_of
from cdr_core.sweep.report import Left, Leftover, Report, join

log = logging.getLogger(__name__)

PAGE = 1000
SET = "set-"
"""How the directory of a spill set begins."""
PINS = "pins"
"""The directory of links to the source's files."""
_EPOCH = re.compile(r"^e(\d+)$")
_OTHERS = frozenset({"spark"})
"""What a recovery's directory holds besides attempts."""


def sweep(repository: Repository, settings: Settings, *, dry_run: bool = False) -> Report:
    """All leftovers of this host: in the workspace, in every tier, and in targets."""
    recoveries = list(_all(repository))
    reports = [sweep_recovery(repository, each.id, settings, dry_run=dry_run) for each in recoveries]
    return join([*reports, Report(left=tuple(_strangers(settings, {each.id for each in recoveries})))])


def sweep_recovery(repository: Repository, recovery_id: str, settings: Settings, *, dry_run: bool = False) -> Report:
    """Leftovers of one recovery; every new attempt begins with it. Safe beside a running attempt."""
    recovery = repository.recovery(recovery_id)
    if recovery.host_id is not None and recovery.host_id != host_id():
        return Report(left=(Left(recovery.workspace, "it is on another host"),))
    try:
        report = _sweep(repository, recovery, settings, dry_run)
        if report.removed:
            log.info("leftovers removed", extra=with_fields(recovery=recovery_id, bytes=report.removed))
        return report
    except CdrError as error:
        return Report(left=(Left(recovery.workspace, f"it cannot be looked at: {error.what}"),))
    except OSError as error:
        return Report(left=(Left(error.filename or recovery.workspace, f"it cannot be looked at: {error.strerror}"),))


def sweep_spilled(repository: Repository, recovery_id: str, settings: Settings) -> Report:
    """Files of spill sets of a recovery that has just ended, in whatever tier, unless an export still reads them, and
    its links to the source.
    """
    recovery = repository.recovery(recovery_id)
    homes = _homes(repository, recovery, settings)
    found, _ = _found(recovery, homes)
    in_sets = [file for file in found if file.name.split("/")[-2].startswith((SET, PINS))]
    standing = standing_of(repository, recovery, settings.sweep_after)
    leftovers = tuple(_judged(recovery, standing, in_sets, dry_run=False))
    _tidy(recovery, homes, standing.is_final)
    return Report(leftovers)


def sweep_unpublished(repository: Repository, recovery_id: str) -> Report:
    """What older attempts of a recovery that has just been published prepared in its target in vain."""
    recovery = repository.recovery(recovery_id)
    found, left = _in_target(repository, recovery)
    over = recovery.state.is_final
    return Report(tuple(_unpublished(recovery, file, over, dry_run=False) for file in found), tuple(left))


def _sweep(repository: Repository, recovery: Recovery, settings: Settings, dry_run: bool) -> Report:
    homes = _homes(repository, recovery, settings)
    found, left = _found(recovery, homes)
    standing = standing_of(repository, recovery, settings.sweep_after)
    if standing.unclear is not None and not standing.is_final:
        left.append(Left(recovery.workspace, f"{standing.unclear} cannot be read, so what it names is not known"))
    leftovers = [*_judged(recovery, standing, found, dry_run)]
    if not dry_run:
        _tidy(recovery, homes, standing.is_final)
    unpublished, unsure = _in_target(repository, recovery)
    leftovers += [_unpublished(recovery, file, standing.is_final, dry_run) for file in unpublished]
    leftovers += [
        Leftover(file.name, file.bytes, recovery.id, recovery.epoch, exports.WHY, True, removed)
        for file, removed in exports.sweep_exports(repository, recovery.id, dry_run=dry_run)
    ]
    return Report(tuple(leftovers), (*left, *unsure))


def _in_target(repository: Repository, recovery: Recovery) -> tuple[list[Found], list[Left]]:
    """Unpublished output. That of a generation that was replaced stays until a later one is done: a process of it that
    was paused while it published may wake up until then, and the target lets only one of the two publish.
    """
    newest = recovery
    while newest.replaced_by is not None:
        newest = repository.recovery(newest.replaced_by)
    if newest is recovery:
        return target.unpublished(recovery, repository.prepared(recovery.id))
    if newest.state is not RecoveryState.DONE:
        return [], [Left(recovery.target, f"output of {recovery.id} stays until {newest.id} is done")]
    return target.unpublished(recovery, ())  # no commit will ever want what its rows name


def _found(recovery: Recovery, homes: Sequence[Path]) -> tuple[list[Found], list[Left]]:
    """Every file of the recovery's attempts, on disks and on S3, and what lies among them and is no attempt's."""
    found = [file for home in homes for file in _files(home)]
    left = [left for home in homes for left in _oddities(home)]
    root = remote_root(recovery)
    if root is not None:
        objects, odd = objects_below(root)
        found += objects
        left += odd
    return found, left


def _judged(recovery: Recovery, standing: Standing, found: Sequence[Found], dry_run: bool) -> Iterator[Leftover]:
    # Manifests go last: after a crash they still tell what else belongs to their set.
    for file in sorted(found, key=lambda file: file.name.endswith(".json")):
        why = judge(standing, file.epoch, file.name)
        if why is not None:
            removed = not dry_run and _removed(file, recovery.id)
            yield Leftover(file.name, file.bytes, recovery.id, file.epoch, str(why), True, removed)


def _removed(file: Found, recovery_id: str) -> bool:
    delete_file(file.name, recovery_id)
    return not storage_for(file.name).exists(file.name)


def _unpublished(recovery: Recovery, file: Found, is_over: bool, dry_run: bool) -> Leftover:
    removed = False
    if is_over and not dry_run:
        with suppress(CdrError):
            storage_for(file.name).delete(file.name)
            removed = True
        if is_local(file.name):
            with suppress(OSError):
                Path(file.name).parent.rmdir()
    return Leftover(file.name, file.bytes, recovery.id, file.epoch, target.WHY, is_over, removed)


def _homes(repository: Repository, recovery: Recovery, settings: Settings) -> list[Path]:
    """The recovery's directory in its workspace, in every tier, and where its rows say that files lie; each by its real
    name, as rows are read, and so once.
    """
    real = RealNames()
    homes = {Path(real.of(f"{directory.path}/{recovery.id}")) for directory in settings.spill_dirs}
    for spill_set in repository.spill_sets(recovery.id):
        places = (attempt_of(real.of(file.path), recovery.id) for file in spill_set.files)
        homes |= {Path(place[0], recovery.id) for place in places if place is not None}
    root = local_root(recovery)
    homes |= {root} if root is not None else set()
    return sorted(home for home in homes if home.is_dir() and not home.is_symlink())


def _epochs(home: Path) -> Iterator[tuple[Path, int]]:
    for entry in sorted(home.iterdir()):
        match = _EPOCH.match(entry.name)
        if match and entry.is_dir() and not entry.is_symlink():
            yield entry, int(match.group(1))


def _files(home: Path) -> Iterator[Found]:
    for directory, epoch in _epochs(home):
        for parent, _, names in os.walk(directory):
            for name in sorted(names):
                path = Path(parent, name)
                if not path.is_symlink():
                    yield Found(str(path), epoch, _size(path))


def _oddities(home: Path) -> Iterator[Left]:
    """What lies in a recovery's directory and is no attempt's; links are not followed and not removed."""
    attempts = {directory for directory, _ in _epochs(home)}
    for entry in sorted(home.iterdir()):
        if entry not in attempts and entry.name not in _OTHERS:
            yield Left(str(entry), "not a directory of an attempt")
    for directory in sorted(attempts):
        for parent, directories, names in os.walk(directory):
            links = [Path(parent, name) for name in (*directories, *names) if Path(parent, name).is_symlink()]
            yield from (Left(str(link), "a link, which cdr makes none of") for link in links)


def _tidy(recovery: Recovery, homes: Sequence[Path], is_over: bool) -> None:
    """Remove directories that are empty now, and count anew what tiers hold."""
    for home in homes:
        for directory, epoch in [*_epochs(home)]:
            if is_over or epoch < recovery.epoch:
                for parent, _, _ in os.walk(directory, topdown=False):
                    with suppress(OSError):
                        Path(parent).rmdir()
        if (home.parent / LEDGER).exists():
            with suppress(OSError):
                settle(Tier(str(home.parent), None), recovery.id, None if is_over else recovery.epoch)
        if is_over:
            with suppress(OSError):
                home.rmdir()


def _strangers(settings: Settings, known: set[str]) -> Iterator[Left]:
    """Directories beside those of the recoveries that no recovery in this database explains."""
    places = {directory.path for directory in settings.spill_dirs}
    if is_local(settings.workspace):
        places.add(str(local_path(settings.workspace)))
    else:
        yield from strange_places(settings.workspace, known)
    for place in sorted(places):
        try:
            entries = sorted(Path(place).iterdir()) if Path(place).is_dir() else []
            strange = [e for e in entries if e.is_dir() and (e.name not in known or e.is_symlink())]
        except OSError as error:
            yield Left(place, f"it cannot be looked at: {error.strerror}")
            continue
        yield from (Left(str(entry), "no recovery of this name is in the database") for entry in strange)


def _all(repository: Repository) -> Iterator[Recovery]:
    offset = 0
    while page := repository.recoveries(limit=PAGE, offset=offset):
        yield from page
        offset += len(page)


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_size
    return 0
