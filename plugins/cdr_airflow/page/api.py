"""The API under ``/cdr/api/v1``. Every route names who may use it; failures are ``{"error", "hint"}``."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from cdr_airflow.page import access, views
from cdr_airflow.page.database import Rows
from cdr_airflow.page.exports import WRITING, Exports
from cdr_airflow.page.ledgers import Ledgers
from cdr_airflow.page.recovery import detail
from cdr_airflow.page.redacted_json import CleanJSON, cleaned, cleaner
from cdr_airflow.page.runs import recovery_of_run
from cdr_core import settings
from cdr_core.audit.receipt import redacted
from cdr_core.errors import NotFound, Refused
from cdr_core.metadata import RecoveryCheckpointState, RecoveryState, Repository
from cdr_core.metadata.recovery_list import LONGEST_PAGE, LONGEST_SEARCH
from cdr_core.metadata.states import RUNNING_STATES
from cdr_core.runtime.checkpoint_requests import ask_for_checkpoint

READ = [Depends(access.may_read)]
ACT = [Depends(access.may_act), Depends(access.refuse_foreign_origin)]

router = APIRouter(prefix="/api/v1")


@router.get("/recoveries", dependencies=READ)
def recoveries(
    rows: Rows,
    limit: Annotated[int, Query(ge=1, le=LONGEST_PAGE)] = 50,
    offset: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
    state: Annotated[RecoveryState | Literal["running"] | None, Query()] = None,
    q: Annotated[str, Query(max_length=LONGEST_SEARCH)] = "",
) -> dict[str, Any]:
    """List recoveries, newest first; ``q`` is part of an id, a checkpoint, a target or a spec; ``running`` are all
    states of a phase.
    """
    states = RUNNING_STATES.values() if state == "running" else [] if state is None else [RecoveryState(state)]
    page, now = rows.recovery_page(limit, offset, tuple(states), q.strip()), datetime.now(UTC)
    return {
        "recoveries": [views.line(line, now) for line in page.lines],
        "total": page.total,
        "limit": limit,
        "offset": offset,
        "by_state": {str(each): count for each, count in page.by_state.items()},
    }


@router.get("/recoveries/{recovery}", dependencies=READ)
def recovery(rows: Rows, recovery: str, request: Request, may_act: access.MayAct) -> dict[str, Any]:
    ledgers: Ledgers = request.app.state.ledgers
    return detail(rows, recovery, settings.load(), _exports(request), ledgers, may_act=may_act)


@router.get("/recoveries/{recovery}/receipt", dependencies=READ)
def receipt(rows: Rows, recovery: str) -> Response:
    """Return the receipt as a file, as ``cdr receipt`` prints it, unless a secret had to be hidden in it."""
    body = rows.receipt(recovery)
    if body is None:
        raise NotFound(f"recovery {recovery} has no receipt, it is {rows.recovery(recovery).state}")
    shown = cleaned(body, cleaner())
    return Response(
        json.dumps(shown if shown == body else redacted(shown), indent=2),
        media_type="application/json",
        headers={"Content-Disposition": f'attachment; filename="cdr-receipt-{recovery}.json"'},
    )


@router.post("/recoveries/{recovery}/checkpoints", dependencies=ACT)
def take_checkpoint(rows: Rows, recovery: str) -> CleanJSON:
    """Request a checkpoint from the drain: 202 with the command to follow; 200 with its last one if the
    drain is over.
    """
    timeout = settings.load().checkpoint_timeout
    asked = ask_for_checkpoint(rows, recovery, timeout)
    if isinstance(asked, int):
        return CleanJSON({"recovery": recovery, "checkpoint": asked, "state": "COMPLETED"})
    return CleanJSON({"recovery": recovery, "command": views.command(asked, timeout)}, 202)


@router.get("/recoveries/{recovery}/commands/{number}", dependencies=READ)
def command(rows: Rows, recovery: str, number: int) -> dict[str, Any]:
    """Return a command and its outcome."""
    return views.command(_command(rows, recovery, number), settings.load().checkpoint_timeout)


@router.post("/recoveries/{recovery}/checkpoints/{number}/export", dependencies=ACT)
def export_checkpoint(rows: Rows, recovery: str, number: int, request: Request) -> CleanJSON:
    """Write it below the export root as a checkpoint in Flink's format: 201 when it exists, 202 while it is written."""
    known = rows.recovery(recovery)
    _refuse_early(rows, known.id, number, _exports(request))
    state = _exports(request).start(settings.load().export_root, known.id, number)
    return CleanJSON({"recovery": known.id, "checkpoint": number, **state}, 201 if state["state"] == "DONE" else 202)


@router.get("/runs/{dag_id}/{run_id:path}", dependencies=[Depends(access.may_read_run), *READ])
def run(rows: Rows, dag_id: str, run_id: str) -> dict[str, Any]:
    """The recovery that a run of a DAG works on; ``null`` before it has one, and for other DAGs."""
    return {"dag": dag_id, "run": run_id, "recovery": recovery_of_run(rows, dag_id, run_id)}


def _refuse_early(rows: Repository, recovery: str, number: int, exports: Exports) -> None:
    """Check what can be checked before a process is started; the export itself checks again."""
    states = {row.checkpoint_id: row.state for row in rows.checkpoints(recovery)}
    if states.get(number) is not RecoveryCheckpointState.COMPLETED:
        state = states.get(number, "unknown")
        raise Refused(f"recovery checkpoint {number} of {recovery} is {state}", hint="take a new one")
    directory = exports.state_of(settings.load().export_root, recovery, number)
    if directory not in (None, WRITING):
        raise Refused(f"{directory} holds a checkpoint already", hint="it is the export of this very checkpoint")


def _exports(request: Request) -> Exports:
    exports: Exports = request.app.state.exports
    return exports


def _command(rows: Repository, recovery: str, number: int) -> Any:
    for each in rows.commands(recovery):
        if each.id == number:
            return each
    raise NotFound(f"recovery {recovery} has no command {number}")
