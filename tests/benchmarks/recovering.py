"""Recoveries that are measured: made through the same door as ``cdr recover``, with workers of the benchmark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cdr_core.metadata import Phase, Repository
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.settings import Settings
from tests.benchmarks.figures import seconds
from tests.benchmarks.inputs import LONG_KEY, spec
from tests.support import inline


class Recovery:
    """One recovery; its phases run one by one."""

    def __init__(self, checkpoint: Path | str, parallelism: str, to: str, **options: Any) -> None:
        request = RecoveryRequest(str(checkpoint), spec(LONG_KEY), parallelism, to, **options)
        self.repository: Repository
        self.repository, self.id, self.settings = inline.start(request)

    def run(self, phase: Phase, workers: Any) -> float:
        """Seconds of the phase, its driver's work included."""
        return seconds(lambda: inline.run(self.repository, self.id, phase, self.settings, workers))

    def results(self, phase: Phase) -> list[Mapping[str, Any]]:
        return [row.result for row in self.repository.units(self.id, phase)]

    def close(self) -> None:
        """What it left in the workspace goes too."""
        self.repository.close()
        shutil.rmtree(Path(self.settings.workspace) / self.id, ignore_errors=True)


@contextmanager
def recovery(checkpoint: Path | str, parallelism: str, to: str, **options: Any) -> Iterator[Recovery]:
    made = Recovery(checkpoint, parallelism, to, **options)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def setting(**values: str) -> Iterator[None]:
    """Settings in force meanwhile, here and in the processes started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def settings_of(home: Path) -> Settings:
    """The settings of a new home."""
    from cdr_core import settings

    home.mkdir(parents=True, exist_ok=True)
    return settings.load({**os.environ, "CDR_HOME": str(home)})
