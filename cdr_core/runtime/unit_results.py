"""Results of units: a small value for the database, and columns that stay in the workspace.

A task leaves one file per unit. The driver records what is small in the unit's row, with the SHA-256 of the file; the
columns (ledgers, splits, blocks of a selection) are read from the file when they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cdr_core.storage.column_codec import Columns, read_columns

if TYPE_CHECKING:
    from cdr_core.metadata import Phase, Repository

SUFFIX = ".msgpack"
SHA256 = "sha256"
"""In a unit's row: of the file that the row was made from. Rows of earlier versions have none, and no columns."""


@dataclass(frozen=True, slots=True)
class UnitResult:
    """What a unit left. ``columns`` are empty where an earlier version left them in ``detail``."""

    unit: str
    detail: Mapping[str, Any]
    columns: Columns = field(default_factory=dict, compare=False)


def is_of_phase(unit: str) -> bool:
    """Whether a unit is the phase's own. Earlier versions had units of `read` that copied a source from S3."""
    return not unit.startswith("stage-")


def unit_results(repository: Repository, recovery_id: str, phase: Phase) -> Iterator[UnitResult]:
    """What the units of a phase left, in unit order, one after another."""
    for row in sorted(repository.units(recovery_id, phase), key=lambda row: row.unit):
        if is_of_phase(row.unit):
            found = read_columns(row.manifest, row.result[SHA256]) if SHA256 in row.result else {}
            yield UnitResult(row.unit, row.result, found)
