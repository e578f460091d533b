"""Access control: Airflow's own authentication and authorisation only.

A plugin's application is not behind Airflow's login by itself, so every route names one of these. Reading recoveries
takes the permission to read the DAG that makes them; acting on one takes the permission to run that DAG.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.configuration import conf
from fastapi import Depends, HTTPException, Request

RECOVER_DAG = "cdr_recover"
DRILL_DAG = "cdr_restore_drill"
ACTION_HEADER = "X-Cdr-Action"
"""A page of another site can send a form here with the user's cookie, but not this header."""

may_read = requires_access_dag("GET", None, RECOVER_DAG)
may_read_drills = requires_access_dag("GET", None, DRILL_DAG)
may_read_run = requires_access_dag("GET", DagAccessEntity.RUN)
may_act = requires_access_dag("POST", DagAccessEntity.RUN, RECOVER_DAG)


def is_allowed_to_act(user: GetUserDep) -> bool:
    """Return whether the page should offer its buttons; pressing one is checked again."""
    return get_auth_manager().is_authorized_dag(
        method="POST", access_entity=DagAccessEntity.RUN, details=DagDetails(id=RECOVER_DAG), user=user
    )


MayAct = Annotated[bool, Depends(is_allowed_to_act)]


def refuse_foreign_origin(request: Request) -> None:
    """Refuse an action that comes from another site in the user's browser; the page itself and programs may act.

    Airflow's session is a cookie, and in its all-admins mode not even that: being signed in is no sign of intent.
    """
    if ACTION_HEADER.lower() not in request.headers:
        raise HTTPException(403, f"An action needs the header {ACTION_HEADER}")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "An action needs a body of type application/json")
    if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        raise HTTPException(403, "This action came from another site")
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc not in _own_hosts(request):
        raise HTTPException(403, "This action came from another site")


def _own_hosts(request: Request) -> set[str]:
    """Return the host names of the request and of the configuration: behind a proxy these differ."""
    configured = urlsplit(conf.get("api", "base_url", fallback="") or "").netloc
    return {host for host in (request.headers.get("host"), configured) if host}
