"""Disk space that a recovery needs, computed from its plan and the settings before anything runs."""

from __future__ import annotations

import numpy as np

from cdr_core.channels.channel_scan import WORTH_A_SUM
from cdr_core.planning.plan import Plan
from cdr_core.settings import Settings
from cdr_core.storage import is_local
from cdr_core.storage.local import local_path


def spilled_bytes(plan: Plan, settings: Settings) -> int:
    """Bytes that spill sets will have to hold: all but those of long channels with one owner, read in place.

    Where merged channels have many watermarks they are stored too; how many, only `filter` knows, and `spill` looks for
    room again.
    """
    channels = plan.channels
    whole = channels.owner_count == 1
    refers = not settings.materialise and settings.segment_size >= WORTH_A_SUM and _lasts(plan, settings)
    in_place = whole & (channels.bytes >= WORTH_A_SUM) & refers
    # The last segment of a channel may be too short to be referred to.
    rests = int((in_place & (channels.bytes > settings.segment_size)).sum()) * (WORTH_A_SUM - 1)
    return int(channels.bytes[~in_place].sum()) + rests


def scratch_at_most(plan: Plan, settings: Settings, tasks: int) -> int:
    """Return the bytes of scratch disk that ``tasks`` concurrent tasks of one host may use; 0 for a local source.

    `read` and `filter` fetch the channels of a unit, and a channel that is divided as a whole; `filter` also writes the
    bytes it selected, which stay in a local workspace; a task of `drain` has a ring of ``CDR_DRAIN_SCRATCH``.
    """
    if is_local(plan.checkpoint):
        return 0
    sizes = plan.channels.bytes
    total = int(sizes.sum())
    divided = np.sort(sizes[plan.channels.owner_count > 1])
    largest = int(divided[-tasks:].sum())
    fetched = min(largest + tasks * settings.split_size, total)
    carried = int(divided.sum()) if is_local(settings.workspace) else largest
    return carried + max(fetched, min(tasks * settings.drain_scratch, total))


def _lasts(plan: Plan, settings: Settings) -> bool:
    """Return whether the source's files surely stay while a recovery runs: links need one file system."""
    if settings.source_immutable or not is_local(plan.checkpoint):
        return True
    if not is_local(settings.workspace):
        return False
    home = local_path(settings.workspace)
    existing = next(path for path in (home, *home.parents) if path.is_dir())
    return existing.stat().st_dev == local_path(plan.checkpoint).stat().st_dev
