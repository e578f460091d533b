"""The list of mutants fits the code, and a few of them are killed for real; ``make mutants`` is for all."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.mutants.__main__ import chosen, is_enough
from tests.mutants.catalogue import ROOT, Mutant, catalogue, faults
from tests.mutants.record import renew, this_run
from tests.mutants.running import Copy, Outcome, Verdict

FAST = ("drain-due-while-pending", "sweep-unclear")
"""Their tests start nothing."""

MUTANT = Mutant(
    "sweep-none",
    "cdr_core/sweep/decide.py",
    "return Why.OLDER",
    "return None",
    ("tests/sweep/test_decide.py::test_what_an_unreadable_manifest_may_name_stays",),
    "nothing ever goes",
)


def test_every_mutant_fits_the_code() -> None:
    mutants = catalogue()
    assert list(faults(mutants)) == []
    assert len(mutants) >= 120


def test_every_test_that_a_mutant_names_is_there() -> None:
    tests = sorted({test for mutant in catalogue() for test in mutant.tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *tests]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-3000:]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"find": "return Why"}, "its text occurs"),
        ({"find": "nowhere"}, "its text occurs 0 times"),
        ({"replace": "return ("}, "was never closed"),
        ({"replace": "return Why.OLDER"}, "nothing is changed"),
        ({"tests": ()}, "it names no test"),
        ({"tests": ("tests/sweep/test_decide.py::test_x",)}, "there is no test"),
    ],
)
def test_a_mutant_that_does_not_fit_is_named(changed: dict[str, object], says: str) -> None:
    (fault,) = faults([msgspec.structs.replace(MUTANT, **changed)])
    assert fault.startswith("mutant sweep-none: ")
    assert says in fault


@pytest.mark.slow
def test_a_few_mutants_are_killed_and_one_that_changes_nothing_survives(tmp_path: Path) -> None:
    copy = Copy(tmp_path)
    few = chosen(catalogue(), FAST, None, 1)
    assert copy.baseline(test for mutant in few for test in mutant.tests) is None
    verdicts = [copy.judge(mutant) for mutant in few]
    assert [verdict.outcome for verdict in verdicts] == [Outcome.KILLED] * len(FAST)
    assert all(verdict.by.startswith("tests/") for verdict in verdicts)
    harmless = msgspec.structs.replace(few[0], replace=few[0].find + " ")
    assert copy.judge(harmless).outcome is Outcome.SURVIVED
    broken = msgspec.structs.replace(few[0], tests=("tests/nowhere.py",))
    assert copy.judge(broken).outcome is Outcome.BROKEN


def test_enough_are_killed_and_the_others_explained() -> None:
    killed = Verdict(MUTANT, Outcome.KILLED, "tests/x.py::test_x", 1.0)
    explained = replace(killed, mutant=msgspec.structs.replace(MUTANT, explained="x"), outcome=Outcome.SURVIVED)
    assert is_enough([killed] * 24 + [explained])
    assert not is_enough([killed] * 23 + [explained])
    assert not is_enough([killed] * 24 + [replace(explained, mutant=MUTANT)])
    assert not is_enough([killed] * 24 + [replace(explained, outcome=Outcome.TIMED_OUT)])
    assert not is_enough([killed] * 24 + [replace(killed, outcome=Outcome.BROKEN)])


def test_a_run_of_some_renews_their_results_alone(tmp_path: Path) -> None:
    one, two = catalogue()[:2]
    file = tmp_path / "runs.json"
    verdicts = [Verdict(one, Outcome.SURVIVED, "", 1.0), Verdict(two, Outcome.KILLED, "tests/x.py::test_x", 1.0)]
    renew(file, this_run("all", 1, verdicts, 2.0), verdicts)
    later = [replace(verdicts[0], outcome=Outcome.KILLED, by="tests/y.py::test_y")]
    record = renew(file, this_run("one", 1, later, 1.0), later)
    assert (record.killed, record.survived, record.not_run) == (2, 0, record.mutants - 2)
    assert [(each.id, each.by) for each in record.killed_by] == [(one.id, later[0].by), (two.id, verdicts[1].by)]
    assert record.run.command == "one"


def test_a_sample_is_chosen_by_its_seed() -> None:
    mutants = catalogue()
    assert chosen(mutants, None, 5, 1) == chosen(mutants, None, 5, 1) != chosen(mutants, None, 5, 2)
    assert {mutant.area for mutant in chosen(mutants, ["sweep"], None, 1)} == {"sweep"}
    assert [mutant.id for mutant in chosen(mutants, [mutants[3].id], 9, 1)] == [mutants[3].id]
