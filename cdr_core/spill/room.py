"""Whether there is room for what will be spilled, asked before anything runs."""

from __future__ import annotations

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
) -> None:
    """Refuse tiers that cannot take ``expected`` bytes, before anything runs; only for a recovery that spills.

    What other recoveries than ``own`` hold of a tier is not there.
    """
    if SET_BUFFERS * segment_size > budget:
        raise SettingsRefused(
            f"CDR_MEMORY_BUDGET of {budget} bytes is less than {SET_BUFFERS} segments of {segment_size} bytes",
            hint="raise CDR_MEMORY_BUDGET or lower CDR_SEGMENT_SIZE",
        )
    if not is_local(workspace):
        return  # how much an object store still takes, nobody can tell
    if spill_dirs:
        tiers = [Tier(directory.path, directory.capacity) for directory in spill_dirs]
        check(tiers, [look(tier, held_in(tier, own)) for tier in tiers], expected, segment_size, SETTING)
        return
    tier = Tier(str(_existing(workspace)), None)
    check([tier], [look(tier)], expected, segment_size, "CDR_WORKSPACE")


def _existing(workspace: str) -> Path:
    """The first directory on the way to it that is there."""
    return next(path for path in (local_path(workspace), *local_path(workspace).parents) if path.is_dir())
