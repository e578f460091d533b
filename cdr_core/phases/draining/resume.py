"""Where a new attempt at the drain begins: at the last complete recovery checkpoint, not from zero.

Subtasks that are finished stay finished. What the others prepared after that checkpoint is forgotten before anything
is drained again, or it would be published twice.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cdr_core.drain.checkpoints import FINISHED, START
from cdr_core.errors import IllegalState
from cdr_core.metadata import Phase, RecoveryCheckpointState
from cdr_core.phases.coordination import require_no_unknown_commit
from cdr_core.phases.draining.cuts import read_cuts
from cdr_core.phases.draining.mailbox import NOTHING_SAID, cut_body
from cdr_core.phases.results import SHA256

if TYPE_CHECKING:
    from cdr_core.metadata.values import UnitResult
    from cdr_core.phases.driver import Drive

RESULT = "result"
"""In the body of a cut: the file and SHA-256 of the result of a subtask that is finished."""


def go_back(drive: Drive, subtasks: Collection[int]) -> dict[int, dict[str, Any]]:
    """Go back to the last complete checkpoint: its cuts by subtask, empty if there is none.

    What unfinished subtasks prepared since is forgotten. (Checkpoints that a dead attempt left under way were aborted
    when this one began.)
    """
    rows = drive.repository.checkpoints(drive.recovery.id)
    complete = [row for row in rows if row.state is RecoveryCheckpointState.COMPLETED]
    back_to = complete[-1].checkpoint_id if complete else 0
    committed = max((entry.commit_id for entry in drive.repository.commit_log(drive.recovery.id)), default=0)
    if back_to < committed:
        raise IllegalState(f"the drain would go back to checkpoint {back_to}, and {committed} may be published")
    require_no_unknown_commit(drive, back_to)
    finished = set(finished_subtasks(drive))
    with drive.fenced() as transaction:
        for subtask in sorted(set(subtasks) - finished):
            transaction.reset_subtask(subtask, back_to)
    return read_cuts(complete[-1], drive.plan) if complete else {}


def finished_subtasks(drive: Drive) -> dict[int, Mapping[str, Any]]:
    """Results of the subtasks that are drained to the end, by subtask, each with the file that holds its ledger."""
    rows = drive.repository.units(drive.recovery.id, Phase.DRAIN)
    return {int(row.result["subtask"]): {**row.result, RESULT: _file_of(row)} for row in rows}


def _file_of(row: UnitResult) -> list[str] | None:
    return [row.manifest, row.result[SHA256]] if SHA256 in row.result else None


def finished_body(result: Mapping[str, Any], files: list[dict[str, Any]]) -> dict[str, Any]:
    """What a cut says of a subtask that is drained to the end; ``files`` were not handed over yet."""
    said = result.get("said", NOTHING_SAID)
    brief = {name: said[name] for name in ("watermark", "idle")}
    return cut_body(files, result["manifest"], brief) | {RESULT: result.get(RESULT), "finished": True}


@dataclass(frozen=True, slots=True)
class Situation:
    """A drain attempt as it begins.

    ``positions`` and ``bases`` (what a cut there would say) by subtask; ``finished`` results by subtask; ``last`` the
    highest checkpoint number in use; ``handed_over`` the files that prepared entries name already.
    """

    positions: Mapping[int, str]
    bases: Mapping[int, Mapping[str, Any]]
    finished: Mapping[int, Mapping[str, Any]]
    last: int
    handed_over: frozenset[str]


def situation(drive: Drive, units: Mapping[str, Mapping[str, Any]]) -> Situation:
    """From the units as they were prepared, and the rows."""
    finished = finished_subtasks(drive)
    positions: dict[int, str] = {}
    bases: dict[int, Mapping[str, Any]] = {}
    for unit in units.values():
        subtask, stored = unit["subtask"], unit["base"]
        if subtask in finished:
            positions[subtask] = FINISHED
        else:
            positions[subtask] = stored["position"] if stored else START
            # A set that was made again has the bytes of the one the cut was made of, and that one may be gone.
            bases[subtask] = (
                {**stored["body"], "manifest": unit["manifest"]} if stored else _from_the_start(unit["manifest"])
            )
    last = max((row.checkpoint_id for row in drive.repository.checkpoints(drive.recovery.id)), default=0)
    return Situation(positions, bases, finished, last, handed_over(drive))


def handed_over(drive: Drive) -> frozenset[str]:
    """Files that prepared entries name."""
    entries = drive.repository.prepared(drive.recovery.id)
    return frozenset(file["path"] for entry in entries for file in json.loads(entry.manifest)["files"])


def _from_the_start(manifest: str) -> dict[str, Any]:
    return cut_body([], manifest)
