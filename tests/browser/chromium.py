"""The Chromium of this machine. One is never downloaded: it comes from the system's packages or it is not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support import lanes

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")

ABSENT = (
    "there is no Chromium on this machine, so nothing was tested in a browser; install one (Debian: apt-get install "
    "chromium) or name its program in CHROMIUM"
)

FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    # It would look for updates, accounts and lists at hosts that have nothing to do with the test.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find() -> str | None:
    """The program that ``CHROMIUM`` names, or the first of the usual ones; ``None`` where there is none."""
    wished = os.environ.get("CHROMIUM")
    return next(filter(None, map(shutil.which, [wished] if wished else NAMES)), None)


@contextmanager
def running() -> Iterator[Browser]:
    """A browser without a window, ended with the block."""
    from playwright.sync_api import sync_playwright

    lanes.require("browser")
    program = find()
    assert program is not None, ABSENT
    # Chromium refuses to run its sandbox for root, as which containers and build machines run.
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else list(FLAGS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=flags, headless=True)
        try:
            yield browser
        finally:
            browser.close()
