"""Units of `commit` for a checkpoint as the target, and the result of any unit of `commit`."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from cdr_core.commit.committable import PreparedFile
from cdr_core.metadata import Phase
from cdr_core.runtime.unit_results import PhaseResult


class ChannelsUnit(msgspec.Struct, frozen=True, tag_field="kind", tag="channels"):
    """Check the channel files of a new subtask; with ``join`` several become one."""

    subtask: int
    files: tuple[PreparedFile, ...]
    join: bool


class StateUnit(msgspec.Struct, frozen=True, tag_field="kind", tag="state"):
    """Redistribute the other state of some new subtasks of an operator."""

    operator: str
    parallelism: int
    subtasks: tuple[int, ...]


class PublishedUnit(msgspec.Struct, frozen=True, tag_field="kind", tag="done"):
    """The checkpoint is published, so its state is not moved again."""


class MovedState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Result of moving state: bytes read and written anew, files made, files copied, files it still depends on and
    which of those are missing or cannot be looked for. Earlier versions did not look.
    """

    read: int
    written: int
    made: tuple[dict[str, Any], ...]
    copied: tuple[dict[str, Any], ...]
    depends_on: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class CommitResult(PhaseResult, frozen=True, omit_defaults=True, kw_only=True):
    """The result of a unit. Of a table only the columns count. ``file``: the one file with the subtask's channels;
    ``state``: the small ``_metadata`` of an operator. ``joined`` is false for a unit that did nothing because the
    checkpoint existed. ``ledger``: of earlier versions.
    """

    PHASE: ClassVar[Phase] = Phase.COMMIT

    subtask: int | None = None
    joined: bool | None = None
    file: PreparedFile | None = None
    state: str | None = None
    moved: MovedState | None = None
    ledger: tuple[dict[str, Any], ...] = ()
