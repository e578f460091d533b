"""Places where a test may make a process stop, die or fail. Without ``CDR_FAULTS`` nothing happens here.

``CDR_FAULTS`` is a comma-separated list of ``POINT=ACTION``: ``kill`` ends the process as by SIGKILL, ``raise``
raises an I/O error, ``pause:FILE`` waits while FILE exists, ``sleep:SECONDS`` makes it slow, ``once:FILE:ACTION`` acts
only if FILE could be created by this very call, so that a retry gets through. A fault that fires leaves a line in
``CDR_FAULTS_LOG``, so that a test can show that it did; a slow one does not.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def reach(point: str) -> None:
    """Mark a durable step; acts only when the environment asks for a fault here."""
    wished = os.environ.get("CDR_FAULTS")
    if not wished:
        return
    for entry in wished.split(","):
        name, _, action = entry.partition("=")
        if name == point:
            _act(point, action)


def _act(point: str, action: str) -> None:
    if action.startswith("once:"):
        _, file, action = action.split(":", 2)
        try:
            Path(file).touch(exist_ok=False)
        except FileExistsError:
            return
    if action.startswith("sleep:"):
        time.sleep(float(action.removeprefix("sleep:")))
        return
    if log := os.environ.get("CDR_FAULTS_LOG"):
        with Path(log).open("a") as lines:
            lines.write(f"{point} {action}\n")
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "raise":
        raise OSError(f"fault injected at {point}")
    elif action.startswith("pause:"):
        while Path(action.removeprefix("pause:")).exists():
            time.sleep(0.05)
