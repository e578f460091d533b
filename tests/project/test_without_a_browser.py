"""A machine without a Chromium: ``make test-browser`` says so and tests nothing, rather than fetching one."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import ROOT


def test_where_there_is_no_chromium_it_is_said_with_a_status_of_its_own() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.browser"],
        cwd=ROOT,
        env=os.environ | {"CHROMIUM": "/nowhere/chromium"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "there is no Chromium on this machine, so nothing was tested" in done.stderr
    assert done.stdout == ""
