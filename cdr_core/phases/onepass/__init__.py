"""One pass: read, filter, route and deliver in one Spark job, one task per new subtask, for the shortest recovery.

A task reads the virtual channels that may feed its subtask one after another and keeps its own elements. Whole records
go on as *parcels* of about a page, by the router's three paths: at once into the consumer's bounded queue while there
is room and nothing older waits on disk; to disk when there is none; behind the disk while anything is there, which is
replayed from its head as room appears. So reading never waits for the consumer. After the last read the rest on disk is
delivered with requests that wait, and nothing else is held while they do.

Spilling is on where both flags are: *recover output downstream* and *checkpoint during recovery*. Otherwise the queue
is all there is, and the reader waits for it.

What is different from the five phases: a channel with several possible owners is read by each of them, and what a task
had done is lost with the task. A recovery checkpoint is NOT_READY until the end, which is one. A subtask that still
reads has no tail that a cut could refer to. One that is past reading has, but which bytes lie on its disk was decided
by the speed of its consumer: a set that gets lost could not be made again the same, so a cut would live no longer than
the files it points to, and nobody could go back behind it. Who needs checkpoints while draining runs the five phases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdr_core.phases.unit import Job, Outcome
    from cdr_core.rescale.plan import Plan

NAME = "onepass"
"""As a unit's module, in paths of the workspace, and in the names of faults."""


def execute(job: Job, plan: Plan, unit: Mapping[str, Any], name: str) -> Outcome:
    """One subtask from its source to its prepared output."""
    # Imported where it runs: drivers of other phases look at this package only to see whether a recovery is one pass.
    from cdr_core.phases.onepass.task import execute as run

    return run(job, plan, unit, name)
