"""A copy of the tree in which one mutant after another is put in, tested and taken out."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tests.mutants.catalogue import ROOT, Mutant

LIMIT_SECONDS = 240.0
"""What the tests of one mutant may take; a mutated kernel is compiled anew, with all that it is taken into."""
BASELINE_SECONDS = 1800.0

_PASSED, _FAILED = 0, 1
"""Exit statuses of pytest; any other means that the tests did not run."""

_NAMED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", re.MULTILINE)


class Outcome(StrEnum):
    """BROKEN = the tests could not run at all, so nothing was found out."""

    KILLED = "killed"
    SURVIVED = "survived"
    TIMED_OUT = "timed out"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant; ``by`` is the test that failed, or what pytest said when the mutant is BROKEN."""

    mutant: Mutant
    outcome: Outcome
    by: str
    seconds: float


class Copy:
    """The tracked files in a directory, with a cache of compiled kernels and a temporary directory of their own.

    The environment is shared. Tests import the copy, because its root comes first on the path.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self._root = directory, directory / "tree"
        self._process: subprocess.Popen[str] | None = None
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).is_file():
                (self._root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self._root / name)

    def baseline(self, tests: Iterable[str]) -> str | None:
        """Run tests without any fault; what pytest said unless all of them passed."""
        status, text = self._pytest(sorted(set(tests)), BASELINE_SECONDS, keep_bytecode=True)
        return None if status == _PASSED else text

    def judge(self, mutant: Mutant) -> Verdict:
        """Put the mutant in, run its tests, take it out.

        The changed file has a modification time of its own, and no bytecode of it is written: neither Python nor Numba,
        whose cache has a place for every state of the kernels, takes one version for the other.
        """
        path = self._root / mutant.file
        text, times = path.read_text(), path.stat()
        began = time.monotonic()
        try:
            path.write_text(mutant.apply(text))
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 10**10))
            status, said = self._pytest(mutant.tests, LIMIT_SECONDS)
        finally:
            path.write_text(text)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        return Verdict(mutant, *_read(status, said), round(time.monotonic() - began, 1))

    def _pytest(self, tests: Sequence[str], seconds: float, *, keep_bytecode: bool = False) -> tuple[int | None, str]:
        """The exit status, ``None`` = it took too long; and what it printed."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "--durations=0",
            "-m",
            "not soak",
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("CDR_", "PYTEST_"))}
        environment |= {
            "CDR_HOME": str(self._directory / "home"),
            "NUMBA_CACHE_DIR": str(self._directory / "numba"),
            "PYTHONPATH": os.pathsep.join([str(self._root), str(self._root / "plugins")]),
        }
        environment |= {} if keep_bytecode else {"PYTHONDONTWRITEBYTECODE": "1"}
        self._process = process = subprocess.Popen(
            [*command, "--basetemp", str(self._directory / "tmp"), *tests],
            cwd=self._root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.stop()
            process.communicate()
            return None, ""
        return process.returncode, said

    def stop(self) -> None:
        """End the tests that run, and all that they started."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)


def _read(status: int | None, said: str) -> tuple[Outcome, str]:
    if status is None:
        return Outcome.TIMED_OUT, ""
    if status == _PASSED:
        return Outcome.SURVIVED, ""
    named = _NAMED.search(said)
    if status == _FAILED and named is not None:
        return Outcome.KILLED, named.group(1)
    return Outcome.BROKEN, said[-2000:]
