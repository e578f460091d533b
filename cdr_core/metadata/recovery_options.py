"""Options and settings of a recovery, and the summary of its plan, as its row stores them.

Options change the result: a second start must bring the same ones, so they are compared. Settings do not, and those of
the first start are kept. Defaults are not stored, so that a recovery which an earlier release created has the same
options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

AT_END, PER_CHECKPOINT = "at-end", "per-checkpoint"
"""When a recovery is published: once at its end, or with every recovery checkpoint."""


class RecoveryOptions(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """``drop_records``: the records to be left out. ``drain_order``: the exchanges to be drained before the others.
    ``recover_output_downstream``: all in-flight data becomes input state of a ``checkpoint:`` target; it is fixed
    when the recovery is created, because half of a channel cannot go one way and half the other.

    ``table_shape``: the columns of a table, absent where an earlier release created the recovery; such a release stored
    ``table_raw`` = false for a table without the column ``raw``.
    """

    on_corrupt: str
    commit: str = AT_END
    table_shape: str | None = None
    table_raw: bool | None = None
    drop_records: tuple[str, ...] = ()
    drain_order: tuple[str, ...] = ()
    recover_output_downstream: bool = False


class RecoverySettings(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """``checkpoint_interval`` as the user wrote it; empty = the setting. ``trust_key``: the user vouches for keys that
    nothing in the checkpoint proves. ``replace_token`` tells a start-over that is repeated, as by a retried task, from
    another start-over. ``pin_file``: where its pin beside the source is. ``evidence``: what confirms types and
    keys, an entry per exchange; ``None`` where an earlier release created the recovery.
    """

    checkpoint_interval: str = ""
    trust_key: bool = False
    replace_token: str = ""
    pin_file: str = ""
    evidence: tuple[Mapping[str, Any], ...] | None = None


class PlannedEnds(msgspec.Struct, frozen=True):
    """An exchange in the summary of a plan; ``up`` and ``down``: old and new number of subtasks."""

    name: str
    up: tuple[int, int]
    down: tuple[int, int]
    partitioner: str


class PlanSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a person wants to see of a plan first, and what later phases need without reading the plan.

    ``source_modified``: when the metadata was written, in ISO. ``sources``: the index of the source's objects, needed
    until the recovery is over; empty where an earlier version made the plan.
    """

    exchanges: tuple[PlannedEnds, ...] = ()
    subtasks: int = 0
    channels: int = 0
    ambiguous: int = 0
    bytes: int = 0
    evidence: tuple[Mapping[str, Any], ...] | None = None
    source_modified: str = ""
    sources: str = ""
