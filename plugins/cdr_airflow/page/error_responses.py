"""Failures as responses: a sentence and a hint, as JSON for programs and as a page for browsers. Never a traceback."""

from __future__ import annotations

import html
import logging
from http import HTTPStatus
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from cdr_airflow.page.redacted_json import CleanJSON, cleaner
from cdr_core.errors import CdrError, DatabaseUnavailable, NotFound, NotReady, Refused, SettingsRefused

log = logging.getLogger(__name__)

_STATUS: tuple[tuple[type[CdrError], int], ...] = (
    (NotFound, 404),
    (DatabaseUnavailable, 503),
    (SettingsRefused, 503),
    (NotReady, 409),
    (Refused, 409),
    (CdrError, 500),
)
"""The first matching class decides."""

_SENTENCES = {
    401: ("You are not signed in", "sign in to Airflow"),
    403: ("You may not do this", "ask for access to the DAG cdr_recover"),
    404: ("There is nothing at this address", ""),
    405: ("This address takes other methods", ""),
}
_ERROR_PAGE = (Path(__file__).parent / "static" / "error.html").read_text()


def status_of(error: CdrError) -> int:
    return next(status for kind, status in _STATUS if isinstance(error, kind))


def add_handlers(app: FastAPI) -> None:
    """Register a handler for every kind of failure."""
    app.add_exception_handler(CdrError, _cdr_error)
    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(Exception, _unexpected)


def answer(request: Request, status: int, error: str, hint: str = "") -> Response:
    """Return the failure in the form that the client accepts."""
    if not _wants_page(request):
        return CleanJSON({"error": error, "hint": hint}, status)
    clean = cleaner()
    base = str(request.scope.get("root_path", ""))
    fields = {
        "base": f"{base}/",
        "status": f"{status} {HTTPStatus(status).phrase}",
        "error": f"{error[:1].upper()}{error[1:]}",
        "hint": f"{hint[:1].upper()}{hint[1:]}." if hint else "",
        "login": _login(request) if status == HTTPStatus.UNAUTHORIZED else "",
        "again": str(request.url) if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "",
    }
    page = _ERROR_PAGE
    for name, value in fields.items():
        page = page.replace(f"${{{name}}}", html.escape(clean(value)))
    return HTMLResponse(page, status)


def _wants_page(request: Request) -> bool:
    path = request.url.path.removeprefix(str(request.scope.get("root_path", "")))
    return not path.startswith(("/api/", "/metrics")) and "text/html" in request.headers.get("accept", "")


def _login(request: Request) -> str:
    """Return Airflow's login address, whatever manages its users."""
    from airflow.api_fastapi.app import get_auth_manager

    return str(get_auth_manager().get_url_login(next_url=str(request.url)))


async def _cdr_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, CdrError)
    place = str(error.where)
    return answer(request, status_of(error), f"{error.what} ({place})" if place else error.what, error.hint)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    sentence, hint = _SENTENCES.get(error.status_code, (str(error.detail), ""))
    detail = str(error.detail)
    if isinstance(error, HTTPException) and detail not in {HTTPStatus(error.status_code).phrase, "Not authenticated"}:
        sentence = detail
    return answer(request, error.status_code, sentence, hint)


async def _bad_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"][1:]) or "the request"
    return answer(request, 422, f"{name}: {first['msg']}", "correct the request")


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("the page failed at %s", request.url.path, exc_info=error)
    return answer(request, 500, "Something went wrong (a bug in this page)", "look into the api-server's log")
