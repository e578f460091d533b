"""What tests of killed committers wait for."""

from __future__ import annotations

import time
from pathlib import Path

FENCED = 4


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < deadline, f"{file.name} never came"
        time.sleep(0.01)
