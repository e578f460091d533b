"""Results of units: a small value for the database, and columns that stay in the workspace.

A task leaves one file per unit. The driver records the small value in the unit's row, with the SHA-256 of the file; the
columns (ledgers, splits, blocks of a selection) are read from the file when they are needed. Fields that only earlier
versions wrote are marked: theirs are the rows without a SHA-256.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import msgspec

from cdr_core.flink.read_page import PageCounts
from cdr_core.metadata import Phase
from cdr_core.runtime.units import FilterUnit, StoredColumns
from cdr_core.spill.spill_set import SpillFile
from cdr_core.storage.column_codec import Columns, read_columns

if TYPE_CHECKING:
    from cdr_core.metadata import Repository
    from cdr_core.metadata.values import UnitResult as UnitRow

SUFFIX = ".msgpack"

Entries = tuple[Mapping[str, Any], ...]
"""A ledger as earlier versions wrote it: a value per line."""


class PhaseResult(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the row of a unit says. ``sha256``: of the file that the row was made from. ``fetched_bytes``: how much of a
    source on an object store the unit fetched.
    """

    PHASE: ClassVar[Phase]

    sha256: str = ""
    fetched_bytes: int = 0


class ReadResult(PhaseResult, frozen=True, omit_defaults=True, kw_only=True):
    """``special``: channels that were salvaged or had records dropped. ``channels``: of earlier versions."""

    PHASE: ClassVar[Phase] = Phase.READ

    special: tuple[Mapping[str, Any], ...] = ()
    channels: tuple[Mapping[str, Any], ...] = ()


class FilterResult(PhaseResult, frozen=True, omit_defaults=True, kw_only=True):
    """``selection``: the file of blocks; ``carried``: the file of fetched bytes. ``parts`` and ``accounts``: of earlier
    versions.
    """

    PHASE: ClassVar[Phase] = Phase.FILTER

    page: PageCounts
    selection: str = ""
    splits: FilterUnit | None = None
    carried: str = ""
    parts: tuple[Mapping[str, Any], ...] = ()
    accounts: tuple[Mapping[str, Any], ...] = ()


class SpillResult(PhaseResult, frozen=True, omit_defaults=True, kw_only=True):
    """``inputs``: index and closing elements that the set was made of. ``ledger``: of earlier versions, which could
    also spill without leaving a set.
    """

    PHASE: ClassVar[Phase] = Phase.SPILL

    subtask: int
    manifest: str = ""
    files: tuple[SpillFile, ...] = ()
    by_reference: int | None = None
    on_disk: int | None = None
    inputs: tuple[StoredColumns, StoredColumns] | None = None
    selected_again: int = 0
    ledger: Entries = ()


R = TypeVar("R", bound=PhaseResult)


@dataclass(frozen=True, slots=True)
class UnitOutput(Generic[R]):
    """What a unit left. ``manifest``: its file; ``columns`` are empty where an earlier version left them in the row."""

    unit: str
    manifest: str
    result: R
    columns: Columns = field(default_factory=dict, compare=False)


def is_of_phase(unit: str) -> bool:
    """Whether a unit is the phase's own. Earlier versions had units of `read` that copied a source from S3."""
    return not unit.startswith("stage-")


def result_of(row: UnitRow, kind: type[R]) -> R:
    """What the row of a unit says."""
    return msgspec.convert(row.result, kind)


def unit_results(repository: Repository, recovery_id: str, kind: type[R]) -> list[R]:
    """What the rows of a phase's units say, in unit order."""
    return [result_of(row, kind) for row in _rows(repository, recovery_id, kind.PHASE)]


def unit_outputs(repository: Repository, recovery_id: str, kind: type[R]) -> Iterator[UnitOutput[R]]:
    """What the units of a phase left, in unit order, one after another."""
    for row in _rows(repository, recovery_id, kind.PHASE):
        result = result_of(row, kind)
        columns = read_columns(row.manifest, result.sha256) if result.sha256 else {}
        yield UnitOutput(row.unit, row.manifest, result, columns)


def _rows(repository: Repository, recovery_id: str, phase: Phase) -> list[UnitRow]:
    rows = sorted(repository.units(recovery_id, phase), key=lambda row: row.unit)
    return [row for row in rows if is_of_phase(row.unit)]
