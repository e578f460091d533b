"""A window on Airflow: the few things that a person does there, by what they see."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote

from playwright.sync_api import Locator, Page, ViewportSize, expect

from tests.conftest import ROOT

SIZE: ViewportSize = {"width": 1280, "height": 800}
"""A laptop's."""

PATIENCE = 900_000
"""Milliseconds until something that Airflow works on is given up; other work may share the machine."""

LOADING = 180_000
"""Milliseconds for a page to show what it is asked for."""

expect.set_options(timeout=LOADING)

LIGHTNESS = """() => {
  const [r, g, b] = getComputedStyle(document.documentElement).backgroundColor.match(/[0-9.]+/g).map(Number);
  return (r + g + b) / 3;
}"""
"""How light the page's ground is, from 0 to 255."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """Where pictures go; ``None`` where nobody asked for them."""

    folder: Path | None

    @classmethod
    def wished(cls) -> Pictures:
        return cls(ROOT / "docs" / "images" if os.environ.get("SCREENSHOTS") else None)

    def take(self, page: Page, name: str, *, full: bool = False) -> None:
        if self.folder is not None:
            self.folder.mkdir(exist_ok=True)
            if full:
                page.evaluate("window.scrollTo(0, 0)")  # else the bar at the top is drawn where it was scrolled to
            page.screenshot(path=self.folder / f"{name}.png", full_page=full, animations="disabled")


@dataclass(frozen=True, slots=True)
class Screen:
    """A window, and the album its pictures go to. ``complaints``: scripts that failed, requests the server failed."""

    page: Page
    pictures: Pictures
    complaints: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, page: Page, pictures: Pictures) -> Screen:
        screen = cls(page, pictures)
        page.set_default_timeout(LOADING)
        page.on("pageerror", lambda error: screen.complaints.append(f"{page.url}: {error}"))
        page.on("response", lambda answer: screen.complaints.append(answer.url) if answer.status >= 500 else None)
        return screen

    def sign_in(self, user: str, password: str) -> None:
        """From the front door to the home page."""
        self.page.goto("/")
        self.try_password(user, password)
        expect(self.page.get_by_test_id("nav-dags-link")).to_be_visible()

    def try_password(self, user: str, password: str) -> None:
        self.page.get_by_label("Username").fill(user)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Sign in").click()

    def open_form(self, dag: str) -> Form:
        self.page.goto(f"/dags/{dag}")
        self.page.get_by_test_id("trigger-dag-button").click()
        dialog = self.page.get_by_role("dialog").filter(has_text="Trigger Dag")
        expect(dialog).to_be_visible()
        return Form(self.page, dialog)

    def open_run(self, dag: str, run: str) -> None:
        self.page.goto(f"/dags/{dag}/runs/{quote(run)}")

    def wait_for_task(self, task: str, state: str) -> None:
        """In the list of the run that is shown, without reloading: as somebody who watches it."""
        row = self.page.get_by_test_id("table-list").get_by_role("row")
        row = row.filter(has=self.page.get_by_role("link", name=task, exact=True))
        expect(row.get_by_test_id("state-badge")).to_have_text(state, timeout=PATIENCE)

    def take(self, name: str, *, full: bool = False) -> None:
        self.pictures.take(self.page, name, full=full)


@dataclass(frozen=True, slots=True)
class Form:
    """The form that starts a run."""

    page: Page
    dialog: Locator

    def section(self, title: str) -> None:
        """Open it; the form closes the others."""
        button = self.dialog.get_by_role("button", name=title)
        if button.get_attribute("aria-expanded") != "true":
            button.click()
        expect(button).to_have_attribute("aria-expanded", "true")

    def fill(self, param: str, value: str) -> None:
        field = self.dialog.locator(f'[name="element_{param}"]')
        expect(field).to_be_visible()
        field.fill(value)
        field.blur()

    def switch(self, param: str) -> None:
        """Turn a switch on; the box itself is hidden behind what is drawn."""
        box = self.dialog.locator(f'[name="element_{param}"]')
        expect(box).to_have_count(1)
        box.locator("xpath=ancestor::label[1]").click()
        expect(box).to_be_checked()

    def submit(self) -> None:
        self.dialog.get_by_test_id("trigger-dag-submit").click()

    def submitted(self) -> str:
        """The id of the run that the form led to."""
        self.submit()
        self.page.wait_for_url("**/runs/**", timeout=LOADING)
        return unquote(self.page.url.rpartition("/runs/")[2].partition("/")[0].partition("?")[0])
