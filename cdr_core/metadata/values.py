"""What the metadata database says, as frozen values: true when they were read, and not connected to it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cdr_core import __version__
from cdr_core.drill_values import DrillArgs, DrillCheck
from cdr_core.errors import Refused
from cdr_core.metadata.recovery_options import PlanSummary, RecoveryOptions, RecoverySettings
from cdr_core.metadata.states import (
    AttemptState,
    CommandState,
    CommitState,
    DrillOutcome,
    Phase,
    PhaseState,
    RecoveryCheckpointState,
    RecoveryState,
    SpillSetState,
)
from cdr_core.targets import KINDS, Target

Json = Mapping[str, Any]
"""A JSON object."""


def new_recovery_id() -> str:
    """Short enough to be typed, long enough not to meet another one."""
    return f"r-{secrets.token_hex(5)}"


def identity_of(metadata_sha256: str, target: str) -> str | None:
    """One recovery per (SHA-256 of ``_metadata``, target); ``None`` for ``none:``, which is never unique."""
    kind = KINDS.get(target.partition(":")[0])
    if kind is not None and not kind.keeps:
        return None
    return hashlib.sha256(f"{metadata_sha256}\n{target}".encode()).hexdigest()


def generation_id(recovery_id: str, generation: int) -> str:
    """The id of a generation: ``r-1f`` is followed by ``r-1f-g2``."""
    first = recovery_id.partition("-g")[0]
    return first if generation == 1 else f"{first}-g{generation}"


def already_visible(recovery_id: str, published: list[tuple[int, str]]) -> Refused:
    """The refusal to start over after a publication: it would put the same records there once more."""
    places = ", ".join(f"commit {number} at {location}" for number, location in published) or "everything it recovers"
    return Refused(
        f"recovery {recovery_id} cannot be started over: it has published {places}",
        hint=f"choose another target, or see what is left of it by: cdr status {recovery_id}",
    )


@dataclass(frozen=True, slots=True)
class NewRecovery:
    """What a recovery is asked to do.

    ``source`` and ``target`` are absolute and normalised: the target's text is half of the identity. ``id`` is drawn
    beforehand so that ``workspace`` can contain it; where the recovery exists already the stored ones win. ``replaces``
    is the id of the generation that this one takes the place of.
    """

    source: str
    metadata_sha256: str
    target: str
    spec: str
    parallelism: str
    workspace: str
    options: RecoveryOptions
    settings: RecoverySettings = field(default_factory=RecoverySettings)
    flink_checkpoint_id: int | None = None
    host_id: str | None = None
    id: str = field(default_factory=new_recovery_id)
    generation: int = 1
    replaces: str | None = None
    cdr_version: str = __version__

    @property
    def spec_sha256(self) -> str:
        return hashlib.sha256(self.spec.encode()).hexdigest()

    @property
    def identity(self) -> str | None:
        return identity_of(self.metadata_sha256, self.target)


@dataclass(frozen=True, slots=True)
class SourceCheckpoint:
    """``pinned`` while a recovery that has not ended needs it."""

    uri: str
    metadata_sha256: str
    flink_checkpoint_id: int | None
    pinned: bool


@dataclass(frozen=True, slots=True)
class Recovery:
    """``epoch`` is 0 before the first attempt; ``plan_*`` are ``None`` until read has made the plan.

    ``generation`` counts how often the same checkpoint and target were started over; ``replaced_by`` is the id of the
    next generation. ``cdr_version`` created it.
    """

    id: str
    source: SourceCheckpoint
    target: str
    spec: str
    spec_sha256: str
    parallelism: str
    options: RecoveryOptions
    settings: RecoverySettings
    workspace: str
    host_id: str | None
    state: RecoveryState
    epoch: int
    plan_hash: str | None
    plan_uri: str | None
    plan_summary: PlanSummary | None
    server: Json | None
    error: str | None
    created_at: datetime
    updated_at: datetime
    generation: int = 1
    replaced_by: str | None = None
    cdr_version: str = ""

    @property
    def output(self) -> Target:
        return Target.parse(self.target)

    @property
    def sources(self) -> str:
        """The index of the source's objects; empty before the plan, or where an earlier version made it."""
        return "" if self.plan_summary is None else self.plan_summary.sources

    @property
    def source_age_s(self) -> float | None:
        """How old the checkpoint was when its recovery was created; ``None`` where its storage did not say."""
        if self.plan_summary is None or not self.plan_summary.source_modified:
            return None
        written = datetime.fromisoformat(self.plan_summary.source_modified)
        return round((self.created_at - written).total_seconds(), 3)


@dataclass(frozen=True, slots=True)
class Runner:
    """Who starts an attempt. ``(run, task)`` names the work, ``try_number`` grows with each try at it."""

    run: str
    task: str
    try_number: int
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Attempt:
    recovery_id: str
    epoch: int
    phase: Phase
    runner: Runner
    state: AttemptState
    started_at: datetime
    ended_at: datetime | None
    error: str | None


@dataclass(frozen=True, slots=True)
class UnitProgress:
    """A unit under way: what is done, about how many bytes it will be, and the seconds that the rest may take."""

    records: int
    bytes: int
    bytes_total: int | None = None
    eta_s: float | None = None

    def to_json(self) -> list[int | float | None]:
        return [self.records, self.bytes, self.bytes_total, self.eta_s]


@dataclass(frozen=True, slots=True)
class PhaseProgress:
    """A phase's row. Totals are ``None`` while unknown, which is not zero.

    ``running``: how far the units under way are, by unit, as of the driver's last look.
    """

    name: Phase
    state: PhaseState
    units_total: int | None
    units_done: int
    bytes_total: int | None
    bytes_done: int
    records_done: int
    running: Mapping[str, UnitProgress]
    result: Json | None
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class UnitResult:
    phase: Phase
    unit: str
    epoch: int
    manifest: str
    records: int
    bytes: int
    result: Json


@dataclass(frozen=True, slots=True)
class SpillFile:
    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Grant:
    """``live`` = it still keeps its set: not released, and durable, of the current epoch, or of a living export."""

    holder: str
    epoch: int
    durable: bool
    released: bool
    live: bool


@dataclass(frozen=True, slots=True)
class Export:
    """An export of a recovery checkpoint that has not ended.

    ``directory`` is where it writes, on ``host`` if that is a directory of one; ``copies`` are files that it makes
    there under names that are not its own; ``live`` = its process renewed its lease in time.
    """

    name: str
    checkpoint_id: int
    directory: str
    host: str | None = None
    copies: tuple[str, ...] = ()
    live: bool = True


@dataclass(frozen=True, slots=True)
class SpillSet:
    """``files`` in the order of their bytes. ``host`` ``None`` = on storage that every host sees."""

    id: int
    subtask: int
    epoch: int
    manifest: str
    host: str | None
    bytes: int
    state: SpillSetState
    files: tuple[SpillFile, ...]
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True)
class RecoveryCheckpoint:
    checkpoint_id: int
    epoch: int
    state: RecoveryCheckpointState
    manifest: str | None
    sha256: str | None
    result: Json | None
    reason: str | None
    triggered_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Prepared:
    """One subtask's output of one checkpoint, also when it is empty.

    ``manifest`` is the writer's own description of it, or where that lies. ``watermark`` in ms; ``None`` = none seen.
    ``epoch`` is filled in by the database: that of the transaction which recorded it.
    """

    subtask: int
    checkpoint_id: int
    manifest: str
    sha256: str
    records: int
    bytes: int
    watermark: int | None = None
    idle: bool = False
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    commit_user: str
    listener_states: Json
    version: int


@dataclass(frozen=True, slots=True)
class CommitLogEntry:
    """``base`` is what the look-up saw and the publication must succeed; ``None`` = an empty sink."""

    commit_user: str
    commit_id: int
    epoch: int
    state: CommitState
    base: str | None
    proof_sha256: str
    location: str | None
    uuid: str | None


@dataclass(frozen=True, slots=True)
class Proof:
    sha256: str
    body: str


NOT_READY = "not_ready"
"""In the answer of a command: no drain has taken it. It still waits if it is REQUESTED."""


@dataclass(frozen=True, slots=True)
class Command:
    id: int
    recovery_id: str
    kind: str
    args: Json
    state: CommandState
    answer: Json | None
    requested_at: datetime
    answered_at: datetime | None


@dataclass(frozen=True, slots=True)
class Drill:
    """``result`` and what follows are ``None`` while it runs; seconds are ``None`` where nothing was measured."""

    id: str
    checkpoint: str
    args: DrillArgs
    recovery_id: str | None
    started_at: datetime
    result: DrillOutcome | None
    checks: tuple[DrillCheck, ...]
    rto_s: float | None
    rpo_s: float | None
    error: str | None
    ended_at: datetime | None
