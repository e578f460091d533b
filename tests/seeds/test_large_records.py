"""Records eight times a page, far more of them than the budget: memory follows the settings, not the data."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cdr_core.metadata import Phase
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.support import inline
from tests.support.generated import KEYED, generated

BYTES = 32_000_000
MOST = 12 << 20
"""Above what the process had before the phase. A page is 4 KiB and the budget 64 KiB; the rest is the interpreter's."""


@pytest.mark.parametrize("phase", [Phase.READ, Phase.FILTER, Phase.SPILL])
def test_a_phase_over_large_records_takes_a_fraction_of_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: Phase
) -> None:
    """002-25, 002-48, 000-01: rescaled and filtered, 500 times the budget; each phase in a process that is watched."""
    monkeypatch.setenv("CDR_PAGE_SIZE", "4KiB")
    monkeypatch.setenv("CDR_MEMORY_BUDGET", "64KiB")
    monkeypatch.setenv("CDR_SEGMENT_SIZE", "8KiB")
    source = generated(tmp_path / "chk", "3", str(BYTES), record_bytes="32KiB-32KiB", keys=64)
    repository, recovery, settings = inline.start(RecoveryRequest(source, KEYED, "2", f"parquet:{tmp_path / 'out'}"))
    for before in list(Phase)[: list(Phase).index(phase)]:
        inline.run(repository, recovery, before, settings)
    assert most_above(phase, recovery) < MOST
    assert inline.run(repository, recovery, phase, settings), "it was done, so there is a stored result"
    repository.close()


def most_above(phase: Phase, recovery: str) -> int:
    """Run a phase in a child; the most memory of its own that it had, less what it began with."""
    pid = os.fork()
    if pid == 0:
        os._exit(inline.main([str(phase), recovery]))
    seen = [memory(pid)]
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            assert os.waitstatus_to_exitcode(status) == 0
            return max(seen) - seen[0]
        seen.append(memory(pid))
        time.sleep(0.002)


def memory(pid: int) -> int:
    """Bytes that are neither a file's nor shared with one; none for a process that has just ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
