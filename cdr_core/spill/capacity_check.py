"""Refuse to start a recovery whose spilled or fetched data has no room."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from cdr_core.errors import SettingsRefused
from cdr_core.settings import SpillDir
from cdr_core.spill.reservations import held_in
from cdr_core.spill.tiers import SET_BUFFERS, SETTING, Tier, check, look
from cdr_core.storage import is_local
from cdr_core.storage.local import local_path


def refuse_unfit(
    spill_dirs: Sequence[SpillDir],
    workspace: str,
    expected: int,
    segment_size: int,
    budget: int,
    own: Collection[str] = (),
    scratch: int = 0,
) -> None:
    """Refuse tiers that cannot take ``expected`` bytes, before anything runs; only for a recovery that spills.

    What other recoveries than ``own`` hold of a tier is not there; files of ``own`` count as free. ``scratch``: bytes
    that tasks may need beside it for what they fetch, where the workspace is the scratch disk.
    """
    if SET_BUFFERS * segment_size > budget:
        raise SettingsRefused(
            f"CDR_MEMORY_BUDGET of {budget} bytes is less than {SET_BUFFERS} segments of {segment_size} bytes",
            hint="raise CDR_MEMORY_BUDGET or lower CDR_SEGMENT_SIZE",
        )
    if not is_local(workspace):
        return  # how much an object store still takes is unknown
    if spill_dirs:
        tiers = [Tier(directory.path, directory.capacity) for directory in spill_dirs]
        check(tiers, [look(tier, held_in(tier, own)) for tier in tiers], expected, segment_size, SETTING)
        refuse_small_scratch(_existing(workspace), scratch - _held(workspace, own), "CDR_WORKSPACE")
        return
    tier, held = Tier(str(_existing(workspace)), None), _held(workspace, own)
    check([tier], [look(tier)], expected - held, segment_size, "CDR_WORKSPACE")
    refuse_small_scratch(_existing(workspace), expected + scratch - held if scratch else 0, "CDR_WORKSPACE")


def refuse_small_scratch(directory: Path, needed: int, setting: str) -> None:
    """Refuse a scratch disk with less than ``needed`` bytes free."""
    free = shutil.disk_usage(_existing(str(directory))).free
    if free < needed:
        raise SettingsRefused(
            f"{directory} has {free} bytes free, and tasks may need {needed} there for what they fetch and spill",
            hint=f"free some space, set {setting} to a larger disk, or lower CDR_DRAIN_SCRATCH or CDR_SPARK_CORES",
        )


def _held(workspace: str, recoveries: Collection[str]) -> int:
    """Return the bytes of these recoveries' own files; pins share theirs with the source."""
    files = (path for recovery in recoveries for path in (local_path(workspace) / recovery).rglob("*"))
    found = (path.lstat() for path in files if path.is_file())
    return sum(each.st_size for each in found if each.st_nlink == 1)


def _existing(workspace: str) -> Path:
    """The first directory on the way to it that is there."""
    return next(path for path in (local_path(workspace), *local_path(workspace).parents) if path.is_dir())
