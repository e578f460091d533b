"""One Airflow and one browser for all browser tests, which ``make test-browser`` runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.airflow.live import Live
from tests.browser import chromium
from tests.browser.screen import SIZE, Pictures, Screen

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    instance = Live.make(tmp_path_factory.mktemp("browser"))
    with instance.guarded():
        up = instance.command("up", "--port", "0")
        assert up.returncode == 0, up.stderr
        yield instance


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium.running() as started:
        yield started


@pytest.fixture(scope="session")
def pictures() -> Pictures:
    return Pictures.wished()


@pytest.fixture(scope="session")
def stranger(live: Live, browser: Browser, pictures: Pictures) -> Iterator[Screen]:
    """A window of somebody who has not signed in."""
    with browser.new_context(base_url=live.url, viewport=SIZE) as context:
        yield Screen.of(context.new_page(), pictures)


@pytest.fixture(scope="session")
def screen(live: Live, browser: Browser, pictures: Pictures) -> Iterator[Screen]:
    """A laptop's window of somebody who has signed in."""
    with browser.new_context(base_url=live.url, viewport=SIZE) as context:
        shown = Screen.of(context.new_page(), pictures)
        shown.sign_in("admin", live.password)
        yield shown


@pytest.fixture(autouse=True)
def _picture_of_a_failure(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """A failed test leaves a picture of what was on the screen."""
    failures = request.session.testsfailed
    yield
    if request.session.testsfailed > failures and "screen" in request.fixturenames:
        shown: Screen = request.getfixturevalue("screen")
        shown.page.screenshot(path=tmp_path / "failed.png")
        print(f"what was on the screen at {shown.page.url}: {tmp_path / 'failed.png'}")
