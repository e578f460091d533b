"""docs/seeds.md accounts for every row of the recovery protocol: by tests that name it, or by a line where one may."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.project.conftest import ROOT

PAGE = ROOT / "docs" / "seeds.md"
LAST = {"000": 23, "001": 22, "002": 50, "003": 14, "004": 28}
ROWS = [f"{seed}-{number:02d}" for seed, last in LAST.items() for number in range(1, last + 1)]
FAULTS = [f"E{number}" for number in range(12, 35)]
LINES = {
    *("000-16", "000-23", "001-08", "001-10", "001-14", "001-19", "001-21"),
    *("002-05", "002-07", "002-14", "002-16", "002-19", "002-20", "002-40", "002-42", "002-43", "002-44", "002-45"),
    *("003-09", "003-14", "004-03", "004-25", "004-26"),
}
"""Rows about how something came about, or that another row's test shows: the only ones that need no test."""
OPEN: set[str] = set()
"""Rows without a test so far. May only shrink."""

_TEST = re.compile(r"`([a-z_0-9/]+\.py)::(test_\w+)`")
_PATH = re.compile(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+(?:\.py|/))`")


class Row(NamedTuple):
    id: str
    text: str
    where: str
    tests: tuple[tuple[str, str], ...]
    shown: str


def rows(page: Path = PAGE) -> list[Row]:
    """Of all tables of the page, in order."""
    found = []
    for line in page.read_text().splitlines():
        if re.match(r"\| (\d{3}-\d{2}|E\d{2}) \|", line):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            where = cells[2] if len(cells) == 4 else ""
            found.append(Row(cells[0], cells[1], where, tuple(_TEST.findall(cells[-1])), cells[-1]))
    return found


@cache
def docstrings(file: str) -> dict[str, str]:
    """Of the test functions in a file below tests/."""
    tree = ast.parse((ROOT / "tests" / file).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {node.name: ast.get_docstring(node) or "" for node in functions}


def faults_of(row: Row) -> list[str]:
    """What is wrong with a row of the page."""
    if row.id in LINES and row.shown == "*a line*":
        return [] if len(row.text) > 20 else [f"{row.id}: a line without a reason"]
    if row.id in OPEN:
        return [] if row.shown == "**not yet**" else [f"{row.id} has a test now: take it out of OPEN"]
    if not row.tests:
        return [f"{row.id} has no test"]
    found = []
    for file, test in row.tests:
        if not (ROOT / "tests" / file).is_file() or test not in docstrings(file):
            found.append(f"{row.id}: there is no {file}::{test}")
        elif row.id not in docstrings(file)[test]:
            found.append(f"{row.id}: the docstring of {file}::{test} does not name it")
    return found


def test_every_row_and_every_fault_is_on_the_page_once_and_in_order() -> None:
    assert [row.id for row in rows()] == ROWS + FAULTS


def test_every_row_is_shown_by_tests_that_are_there_and_name_it() -> None:
    assert [fault for row in rows() for fault in faults_of(row)] == []
    assert not OPEN - set(ROWS)
    assert not OPEN & LINES


def test_every_module_that_the_page_names_is_there() -> None:
    named = {path for row in rows() for path in _PATH.findall(row.where)}
    assert len(named) > 40
    missing = [path for path in named if not any((folder / path).exists() for folder in (ROOT / "cdr_core", ROOT))]
    assert missing == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("| 002-29 | x | `drain/cut.py` | `drain/test_cuts.py::test_not_there` |", "there is no"),
        ("| 002-29 | x | `drain/cut.py` | `drain/test_pages.py::test_a_pool_never_grows` |", "does not name it"),
        ("| 002-29 | x | `drain/cut.py` | *a line* |", "has no test"),
        ("| 002-29 | x | `drain/cut.py` | **not yet** |", "has no test"),
        ("| 002-45 | short | | *a line* |", "without a reason"),
    ],
)
def test_a_row_that_claims_too_much_is_found(tmp_path: Path, line: str, says: str) -> None:
    page = tmp_path / "seeds.md"
    page.write_text(line)
    (fault,) = [fault for row in rows(page) for fault in faults_of(row)]
    assert says in fault
