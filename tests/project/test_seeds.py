"""docs/seeds.md accounts for every row of the designs: by tests that name it, or by a reason; wrong data is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.project.conftest import Tool

ROWS = {"000": 23, "001": 22, "002": 50, "003": 14, "004": 28}
FAULTS = [f"E{number}" for number in range(12, 35)]
Data = Any
"""A ``seeds_reference.Data``, whose module is a script."""


@pytest.fixture
def seeds(tool: Tool) -> ModuleType:
    return tool("seeds_reference")


def change(data: Data, row_id: str, **fields: Any) -> Data:
    """The data with other fields in one row."""
    topics = [
        topic._replace(rows=tuple(row._replace(**fields) if row.id == row_id else row for row in topic.rows))
        for topic in data.topics
    ]
    return data._replace(topics=tuple(topics))


def reorder(data: Data, change_rows: Callable[[list[Any]], list[Any]]) -> Data:
    """The data with other rows in its first topic."""
    first, *others = data.topics
    return data._replace(topics=(first._replace(rows=tuple(change_rows(list(first.rows)))), *others))


def test_every_row_is_there_once_and_in_order(seeds: ModuleType) -> None:
    data, _ = seeds.current()
    rows = [f"{design}-{number:02d}" for design, last in ROWS.items() for number in range(1, last + 1)]
    assert [row.id for row in data.rows] == rows + FAULTS


def test_rows_reasons_modules_and_tests_are_sound_and_the_page_is_theirs(seeds: ModuleType) -> None:
    assert list(seeds.faults(*seeds.current())) == []
    assert seeds.difference() == ""


def test_the_page_has_a_line_for_every_row_that_begins_with_its_title(seeds: ModuleType) -> None:
    data, _ = seeds.current()
    lines = [
        line for line in seeds.PAGE.read_text().splitlines() if line.endswith(tuple(f"| {id_} |" for id_ in seeds.IDS))
    ]
    assert [line.split(" | ")[0] for line in lines] == [f"| {row.title}" for row in data.rows]


@pytest.mark.parametrize(
    ("row", "fields", "says"),
    [
        ("003-10", {"status": "shipped"}, "003-10: shipped, and no test shows it through the real phases"),
        ("000-11", {"status": "done"}, "000-11: the status 'done' is none of shipped, by design, not here"),
        ("003-10", {"reason": ""}, "003-10: by design without a reason"),
        ("003-10", {"reason": "no locks"}, "003-10: the reason is no sentence"),
        ("000-11", {"reason": "see above"}, "000-11: the reason is no sentence"),
        ("000-11", {"title": "Clean-up"}, "000-11: the title is no sentence"),
        ("000-11", {"where": ("drain/not_there.py",)}, "000-11: there is no drain/not_there.py"),
        ("000-11", {"status": "not here", "reason": "It is not needed."}, "000-11: not here, but "),
    ],
)
def test_a_row_that_claims_too_much_is_found(seeds: ModuleType, row: str, fields: dict[str, Any], says: str) -> None:
    data, tests = seeds.current()
    found = list(seeds.faults(change(data, row, **fields), tests))
    assert found
    assert all(fault.startswith(says) for fault in found)


@pytest.mark.parametrize(
    ("change_rows", "says"),
    [
        (lambda rows: rows[1:], ["000-01 is missing"]),
        (lambda rows: [rows[1], rows[0], *rows[2:]], ["000-02 is not in its place"]),
        (
            lambda rows: [*rows, rows[0]._replace(title="It is another title.")],
            ["000-01 is there 2 times"],
        ),
        (
            lambda rows: [*rows, rows[0]._replace(id="000-99", status="by design", reason="It is made up here.")],
            ["000-99 is no row", "2 rows have the title"],
        ),
    ],
)
def test_rows_that_are_missing_twice_unknown_or_out_of_order_are_found(
    seeds: ModuleType, change_rows: Callable[[list[Any]], list[Any]], says: list[str]
) -> None:
    data, tests = seeds.current()
    found = list(seeds.faults(reorder(data, change_rows), tests))
    assert [fault[: len(start)] for fault, start in zip(found, says, strict=True)] == says


def test_a_test_of_a_part_does_not_make_a_row_shipped(seeds: ModuleType) -> None:
    data, _ = seeds.current()
    (row,) = [row for row in data.rows if row.id == "000-12"]
    part, whole = (
        seeds.Test(file, "test_x", ("000-12",), marked=True) for file in ("spill/test_x.py", "seeds/test_x.py")
    )
    only = data._replace(topics=(data.topics[0]._replace(rows=(row,)),))

    def found(*tests: Any) -> list[str]:
        return [fault for fault in seeds.faults(only, tests) if fault.startswith("000-12: ")]

    assert found(part) == ["000-12: shipped, and no test shows it through the real phases"]
    assert found(part, whole) == []


def test_every_place_of_tests_through_the_phases_is_there(seeds: ModuleType) -> None:
    data, tests = seeds.current()
    longer = data._replace(through_phases=(*data.through_phases, "not_there/"))
    assert list(seeds.faults(longer, tests)) == ["through_phases: there is no tests/not_there/"]


@pytest.mark.parametrize(
    ("test", "rows"),
    [
        ('@pytest.mark.seed("000-11", "E19")\ndef test_x(): ...', ["000-11", "E19"]),
        ('@pytest.mark.slow\n@pytest.mark.seed("000-11")\ndef test_x():\n    """Files go."""', ["000-11"]),
        ('def test_x():\n    """000-11, I6, E19: files go."""', ["000-11", "E19"]),
        ('def test_x():\n    """000-11,\n    E19: files go."""', ["000-11", "E19"]),
        ('def test_x():\n    """004-12"""', ["004-12"]),
        ('@pytest.mark.seed("000-11")\ndef test_x():\n    """E19: files go."""', ["000-11", "E19"]),
        ('def test_x():\n    """Files go, see 000-11."""', []),
        ('def helper():\n    """000-11: files go."""', []),
    ],
)
def test_markers_and_heads_of_docstrings_name_rows(seeds: ModuleType, test: str, rows: list[str]) -> None:
    assert [row for found in seeds.tests_in(test, "x/test_x.py") for row in found.rows] == rows


@pytest.mark.parametrize("argument", ['"000-99"', '"E66"', '"all"', "ROW", "11"])
def test_a_marker_that_names_no_row_is_found(seeds: ModuleType, argument: str) -> None:
    data, tests = seeds.current()
    (wrong,) = seeds.tests_in(f"@pytest.mark.seed({argument})\ndef test_x(): ...", "x/test_x.py")
    assert list(seeds.faults(data, [*tests, wrong])) == [
        f"x/test_x.py::test_x names {argument.strip(chr(34))}, which is no row"
    ]


def test_a_page_that_was_edited_by_hand_is_found(
    seeds: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited = tmp_path / "seeds.md"
    edited.write_text(seeds.PAGE.read_text() + "One line more.\n")
    monkeypatch.setattr(seeds, "PAGE", edited)
    assert "make docs writes it anew" in seeds.difference()
