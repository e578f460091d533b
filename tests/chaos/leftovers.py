"""A recovery over several spill tiers, and the files that it leaves."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from cdr_core.metadata import Phase, Recovery, Repository
from cdr_core.runtime.driver import run_phase
from cdr_core.runtime.phase_command import own_runner
from cdr_core.settings import Settings
from cdr_core.spill.tiers import Tier
from cdr_core.sweep import Report, sweep_recovery
from tests.support import inline, output

RECORDS = 1878


class Case:
    """A recovery at P=2 of a small real checkpoint, with a memory tier and a disk."""

    def __init__(self, repository: Repository, recovery_id: str, settings: Settings, root: Path) -> None:
        self.repository, self.id, self.settings, self.root = repository, recovery_id, settings, root
        self.tiers = [Tier(directory.path, directory.capacity) for directory in settings.spill_dirs]

    @property
    def recovery(self) -> Recovery:
        return self.repository.recovery(self.id)

    def run(self, phase: Phase, *, swept: bool = True) -> Report:
        """A phase as the driver runs it: a new attempt begins with a sweep."""
        attempt = self.repository.begin_attempt(self.id, phase, own_runner(str(phase)))
        report = sweep_recovery(self.repository, self.id, self.settings) if swept else Report()
        if attempt is not None:
            run_phase(
                self.repository, self.id, phase, attempt.epoch, self.settings, inline.InlineWorkers(), lambda _: None
            )
        return report

    def run_from(self, first: Phase) -> None:
        for phase in list(Phase)[list(Phase).index(first) :]:
            self.run(phase)

    def run_before(self, phase: Phase) -> None:
        for each in list(Phase)[: list(Phase).index(phase)]:
            self.run(each)

    def die(self, phase: Phase, step: str) -> None:
        """Run the phase in a child that is killed at the step; shows that it was."""
        fired = self.root / f"fired-{step}"
        child = os.fork()
        if child == 0:
            os.environ |= {"CDR_FAULTS": f"{step}=kill", "CDR_FAULTS_LOG": str(fired)}
            code = 70
            try:
                code = inline.main([str(phase), self.id])
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        assert fired.read_text() == f"{step} kill\n"

    def files(self, epoch: int | str = "*") -> set[Path]:
        homes = [Path(self.recovery.workspace), *(Path(tier.path) / self.id for tier in self.tiers)]
        return {path for home in homes for path in home.glob(f"e{epoch}/**/*") if path.is_file()}

    def assert_published_once(self) -> None:
        rows = output.rows(self.root / "out")
        assert len(rows) == len({(row["gate"], row["up"], row["down"], row["pos"]) for row in rows}) == RECORDS
