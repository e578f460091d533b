"""The page's application: one shell for all pages, the API, the metrics, and headers that allow no foreign content."""

from __future__ import annotations

import html
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles

from cdr_airflow.page import access, api, drills, prometheus
from cdr_airflow.page.database import Opened, Rows
from cdr_airflow.page.error_responses import add_handlers, answer
from cdr_airflow.page.exports import Exports
from cdr_airflow.page.ledgers import Ledgers
from cdr_airflow.page.redacted_json import CleanJSON, cleaner

STATIC = Path(__file__).parent / "static"
READ = [Depends(access.may_read)]

_HEADERS = {
    # No inline script or style, nothing from elsewhere, and no frame but Airflow's own.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'self'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "same-origin",
}


def make_page() -> FastAPI:
    """Return a new application; Airflow mounts one under ``/cdr``."""
    app = FastAPI(title="cdr", docs_url=None, redoc_url=None, openapi_url=None, default_response_class=CleanJSON)
    app.state.database = Opened()
    app.state.exports = Exports()
    app.state.ledgers = Ledgers()
    add_handlers(app)
    app.middleware("http")(_with_headers)
    app.include_router(drills.router)
    app.include_router(api.router)
    app.add_api_route("/metrics", _metrics, dependencies=READ, response_class=PlainTextResponse)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.add_api_route("/runs/{dag_id}/{run_id:path}", _shell, dependencies=[Depends(access.may_read_run), *READ])
    app.add_api_route("/drills", _shell, dependencies=[Depends(access.may_read_drills)])
    app.add_api_route("/drills/{drill}", _shell, dependencies=[Depends(access.may_read_drills)])
    app.add_api_route("/recoveries/{recovery}", _shell, dependencies=READ)
    app.add_api_route("/", _shell, dependencies=READ)
    return app


async def _with_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    # No id or name contains one, and PostgreSQL accepts none: it is a client error.
    odd = "\0" in request.url.path or "%00" in request.url.query
    response = answer(request, 422, "an address holds no NUL", "correct it") if odd else await call_next(request)
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    # Answers are current; the modules may change with the next release.
    response.headers.setdefault("Cache-Control", "no-cache")
    return response


def _shell(request: Request) -> HTMLResponse:
    """Return the same HTML for every page: its modules choose the contents by the address."""
    base = html.escape(f"{request.scope.get('root_path', '')}/", quote=True)
    return HTMLResponse((STATIC / "index.html").read_text().replace("${base}", base))


def _metrics(rows: Rows) -> PlainTextResponse:
    now = datetime.now(UTC)
    found = prometheus.metrics(rows.statistics(), drills.statuses(rows, now), rows.drill_counts(), now)
    return PlainTextResponse(prometheus.render(found, cleaner()), media_type=prometheus.CONTENT_TYPE)
