"""Who may see and do what, against Airflow's real login: nobody, a viewer, a user."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.page.conftest import Sample

ACTION = {"X-Cdr-Action": "1"}
OPEN = "/static"


def paths() -> list[tuple[str, str]]:
    """Every route of the application, with something in place of its parameters."""
    from fastapi.routing import APIRoute

    from cdr_airflow.page.app import make_page

    found = []
    for route in _routes(make_page().routes):
        if isinstance(route, APIRoute):
            path = re.sub(r"\{number\}", "1", route.path)
            found += [(method, re.sub(r"\{[^}]+\}", "x", path)) for method in sorted(route.methods)]
    return found


def _routes(routes: Any) -> Any:
    for route in routes:
        inner = getattr(route, "original_router", None)
        yield from _routes(inner.routes) if inner is not None else [route]


def test_every_address_is_closed_to_anonymous_callers(page: Sample) -> None:
    asked = paths()
    assert {path for _, path in asked} >= {
        *("/", "/metrics", "/drills", "/recoveries/x", "/runs/x/x", "/api/v1/recoveries", "/api/v1/drills"),
        *("/api/v1/recoveries/x/receipt", "/api/v1/recoveries/x/checkpoints/1/export", "/api/v1/runs/x/x"),
    }
    with page.server.client(None) as client:
        for method, path in asked:
            answer = client.request(method, path, json={} if method == "POST" else None, headers=ACTION)
            assert answer.status_code == 401, (method, path)
            assert answer.json()["error"] == "Nobody is signed in"
        for closed in ("/docs", "/openapi.json", "/redoc", "/static/../app.py"):
            assert client.get(closed).status_code in {401, 404}, closed


def test_an_anonymous_browser_gets_a_page_with_the_way_in(page: Sample) -> None:
    answer = page.server.get("/", None, headers={"Accept": "text/html"})
    assert answer.status_code == 401
    assert 'href="/auth/login?next=' in answer.text


def test_a_forged_token_is_refused(page: Sample) -> None:
    with httpx.Client(base_url=f"{page.server.url}/cdr", cookies={"_token": "x.y.z"}) as client:
        assert client.get("/api/v1/recoveries").status_code in {401, 403}


def test_a_viewer_sees_everything_and_may_do_nothing(page: Sample) -> None:
    answer = page.server.json(f"/api/v1/recoveries/{page.wide}")
    assert "not act" in answer["actions"]["take"]
    with page.server.client("vic") as client:
        for path in (
            f"/api/v1/recoveries/{page.wide}/checkpoints",
            f"/api/v1/recoveries/{page.wide}/checkpoints/1/export",
        ):
            refused = client.post(path, json={}, headers=ACTION)
            assert refused.status_code == 403, path
            assert set(refused.json()) == {"error", "hint"}
    assert page.server.json(f"/api/v1/recoveries/{page.wide}", "uma")["actions"]["take"] is None


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({}, {"json": {}}),
        (ACTION, {"data": {"a": "b"}}),
        (ACTION | {"Content-Type": "text/plain"}, {"content": "{}"}),
        (ACTION | {"Origin": "https://elsewhere.example"}, {"json": {}}),
        (ACTION | {"Origin": "null"}, {"json": {}}),
        (ACTION | {"Sec-Fetch-Site": "cross-site"}, {"json": {}}),
        (ACTION | {"Sec-Fetch-Site": "same-site"}, {"json": {}}),
    ],
    ids=["no header", "a form", "plain text", "another origin", "no origin", "cross-site", "same site"],
)
def test_an_action_that_another_site_could_send_is_refused(
    page: Sample, headers: dict[str, str], body: dict[str, Any]
) -> None:
    before = len(page.server.json(f"/api/v1/recoveries/{page.wide}")["commands"])
    with page.server.client("ann") as client:
        answer = client.post(f"/api/v1/recoveries/{page.wide}/checkpoints", headers=headers, **body)
    assert answer.status_code in {403, 415}, answer.text
    assert len(page.server.json(f"/api/v1/recoveries/{page.wide}")["commands"]) == before


def test_the_page_may_act_for_its_user_and_a_program_with_a_token(page: Sample) -> None:
    with page.server.client("uma") as browser:
        origin = {"Origin": page.server.url, "Sec-Fetch-Site": "same-origin"}
        path = f"/api/v1/recoveries/{page.wide}/checkpoints"
        assert browser.post(path, json={}, headers=ACTION | origin).status_code == 202
    with page.server.client("uma", cookie=False) as program:
        assert program.post(path, json={}, headers=ACTION).status_code == 202
        assert program.get("/metrics").status_code == 200


def test_nothing_foreign_may_run_in_the_page_or_frame_it(page: Sample) -> None:
    for path in ("/", "/api/v1/recoveries", "/static/main.js", "/nowhere"):
        headers = page.server.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'self'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
