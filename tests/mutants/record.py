"""What is kept of runs: the newest verdict on every mutant, and which commit it is of.

A run of some mutants renews theirs and leaves the others as they are.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tests.mutants.catalogue import ROOT, areas
from tests.mutants.running import Outcome, Verdict

RECORD_VERSION = 1


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """The verdict on a mutant: ``by`` is the test that failed, ``explained`` why none can."""

    id: str
    outcome: Outcome
    commit: str
    by: str = ""
    why: str = ""
    explained: str = ""

    @classmethod
    def of(cls, verdict: Verdict, commit: str) -> Result:
        mutant = verdict.mutant
        if verdict.outcome is Outcome.KILLED:
            return cls(mutant.id, verdict.outcome, commit, verdict.by)
        return cls(mutant.id, verdict.outcome, commit, why=mutant.why, explained=mutant.explained)


class Run(msgspec.Struct, frozen=True):
    """The last run."""

    command: str
    commit: str
    seed: int
    mutants: int
    seconds: int
    python: str
    cores: int
    finished: str


class Record(msgspec.Struct, frozen=True):
    """``mutants`` = how many there are, ``code_is_gone`` = mutants of the audit that cannot be tried any more."""

    version: int
    mutants: int
    killed: int
    survived: int
    timed_out: int
    broken: int
    not_run: int
    killed_percent: float
    run: Run
    survivors: tuple[Result, ...]
    killed_by: tuple[Result, ...]
    code_is_gone: tuple[str, ...]


def this_run(command: str, seed: int, verdicts: Sequence[Verdict], seconds: float) -> Run:
    """The facts about a run that ends now."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return Run(
        command,
        commit.stdout.strip(),
        seed,
        len(verdicts),
        round(seconds),
        platform.python_version(),
        os.cpu_count() or 0,
        datetime.now(UTC).date().isoformat(),
    )


def renew(file: Path, run: Run, verdicts: Sequence[Verdict]) -> Record:
    """Write the record with the verdicts of a run. Results of mutants that are not listed any more go."""
    ids = [mutant.id for area in areas().values() for mutant in area.mutant]
    found = {each.id: each for each in _kept(file)}
    found |= {each.mutant.id: Result.of(each, run.commit) for each in verdicts}
    results = [found[each] for each in ids if each in found]
    counts = {outcome: sum(each.outcome is outcome for each in results) for outcome in Outcome}
    record = Record(
        version=RECORD_VERSION,
        mutants=len(ids),
        killed=counts[Outcome.KILLED],
        survived=counts[Outcome.SURVIVED],
        timed_out=counts[Outcome.TIMED_OUT],
        broken=counts[Outcome.BROKEN],
        not_run=len(ids) - len(results),
        killed_percent=round(100 * counts[Outcome.KILLED] / len(ids), 1),
        run=run,
        survivors=tuple(each for each in results if each.outcome is not Outcome.KILLED),
        killed_by=tuple(each for each in results if each.outcome is Outcome.KILLED),
        code_is_gone=tuple(f"{gone.was}: {gone.fault}" for area in areas().values() for gone in area.gone),
    )
    text = msgspec.json.format(msgspec.json.encode(record), indent=1)
    file.write_bytes(text + b"\n")
    return record


def _kept(file: Path) -> tuple[Result, ...]:
    if not file.is_file():
        return ()
    record = msgspec.json.decode(file.read_bytes(), type=Record)
    return (*record.survivors, *record.killed_by)
