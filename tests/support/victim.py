"""A phase in a process of its own that is killed, and what must be there in the end."""

from __future__ import annotations

import os
from pathlib import Path

from cdr_core.metadata import Phase
from tests.support import inline, output

RECORDS = 1878


class Victim:
    """A phase in a child process that can be killed or stopped."""

    def __init__(self, phase: Phase, recovery: str, faults: str, log: Path) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            os.environ["CDR_FAULTS"], os.environ["CDR_FAULTS_LOG"] = faults, str(log)
            code = 70
            try:
                code = inline.main([str(phase), recovery])
            finally:
                os._exit(code)

    def wait(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


def assert_each_record_once(target: Path) -> None:
    rows = output.rows(target)
    places = {(row["gate"], row["up"], row["down"], row["pos"]) for row in rows}
    assert len(rows) == len(places) == RECORDS
