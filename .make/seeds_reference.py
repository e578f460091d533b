"""Writes docs/seeds.md from docs/seeds/rows.toml and from the tests that name its rows, and tells what is wrong.

A test names rows by ``@pytest.mark.seed("000-11", "E19")`` or at the head of its docstring (``000-11, E19: …``). Test
files are parsed and never imported.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "seeds.md"
DATA = ROOT / "docs" / "seeds" / "rows.toml"
INTRODUCTION = ROOT / "docs" / "seeds" / "introduction.md"
COUNTS = "<!-- counts -->"

SHIPPED, BY_DESIGN, NOT_HERE = "shipped", "by design", "not here"
STATUSES = (SHIPPED, BY_DESIGN, NOT_HERE)

_LAST = {"000": 23, "001": 22, "002": 50, "003": 14, "004": 28}
IDS = tuple(
    [f"{design}-{number:02d}" for design, last in _LAST.items() for number in range(1, last + 1)]
    + [f"E{number}" for number in range(12, 35)]
)
"""Every row, in order."""
OTHER_FAULTS = frozenset(f"E{number:02d}" for number in range(1, 66)) - frozenset(IDS)
"""Faults outside spill and drain: tests may name them, the page does not list them."""

_ID = r"(?:\d{3}-\d{2}|E\d{2}|I\d{1,2})"
_HEAD = re.compile(rf"({_ID}(?:,\s+{_ID})*)(?::|\.?\s*$)")
_MENTION = re.compile(rf"mark\.seed\(|{_ID}")
_SENTENCE = re.compile(r"[A-Z0-9`].{14,}\.", re.DOTALL)
_NOTICE = "<!-- Generated from docs/seeds/ and the tests' markers by `make docs`; edit there. -->"


class Row(NamedTuple):
    id: str
    title: str
    where: tuple[str, ...]
    status: str
    reason: str


class Topic(NamedTuple):
    title: str
    text: str
    rows: tuple[Row, ...]


class Data(NamedTuple):
    """The rows by topic, and the files and folders below tests/ that run the real phases."""

    topics: tuple[Topic, ...]
    through_phases: tuple[str, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for topic in self.topics for row in topic.rows)


class Test(NamedTuple):
    """A test that names rows; ``marked`` = by the marker, else by its docstring."""

    file: str
    name: str
    rows: tuple[str, ...]
    marked: bool

    def is_through_phases(self, data: Data) -> bool:
        return any(
            self.file.startswith(each) if each.endswith("/") else self.file == each for each in data.through_phases
        )


def read_data(text: str) -> Data:
    """Raise ``KeyError`` where a field is missing, ``TypeError`` where one is unknown."""
    value = tomllib.loads(text)
    topics = tuple(
        Topic(topic["title"], topic["text"], tuple(_row(**row) for row in topic["rows"])) for topic in value["topics"]
    )
    return Data(topics, tuple(value["evidence"]["through_phases"]))


def _row(*, id: str, title: str, where: list[str], status: str, reason: str = "") -> Row:  # noqa: A002
    return Row(id, title, tuple(where), status, reason)


def tests_in(text: str, file: str) -> Iterator[Test]:
    """The tests of a file that name rows."""
    if not _MENTION.search(text):
        return
    for node in _functions(ast.parse(text)):
        if node.name.startswith("test_"):
            marked = [_text(argument) for call in _marks(node) for argument in call.args]
            head = _HEAD.match(ast.get_docstring(node) or "")
            named = [each for each in re.split(r",\s+", head[1]) if not each.startswith("I")] if head else []
            if marked:
                yield Test(file, node.name, tuple(marked), marked=True)
            if named:
                yield Test(file, node.name, tuple(named), marked=False)


def _functions(tree: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node)


def _marks(node: ast.FunctionDef) -> Iterator[ast.Call]:
    for each in node.decorator_list:
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "pytest.mark.seed":
            yield each


def _text(argument: ast.expr) -> str:
    """The id, or the source of whatever stands in its place, which is no id."""
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    return ast.unparse(argument)


@cache
def all_tests(root: Path = ROOT) -> tuple[Test, ...]:
    folder = root / "tests"
    files = sorted(folder.rglob("test_*.py"))
    return tuple(test for file in files for test in tests_in(file.read_text(), file.relative_to(folder).as_posix()))


def faults(data: Data, tests: Iterable[Test], root: Path = ROOT) -> Iterator[str]:
    """What is wrong with the rows, or with the tests that name them."""
    tests = list(tests)
    yield from _faults_of_order([row.id for row in data.rows])
    for title, count in Counter(row.title for row in data.rows).items():
        if count > 1:
            yield f"{count} rows have the title {title!r}"
    for path in data.through_phases:
        if not (root / "tests" / path).exists():
            yield f"through_phases: there is no tests/{path}"
    for test in tests:
        for each in test.rows:
            if each not in IDS and each not in OTHER_FAULTS:
                yield f"{test.file}::{test.name} names {each}, which is no row"
    for row in data.rows:
        yield from _faults_of_row(row, [test for test in tests if row.id in test.rows], data, root)


def _faults_of_order(ids: list[str]) -> Iterator[str]:
    for each, count in Counter(ids).items():
        if each not in IDS:
            yield f"{each} is no row"
        elif count > 1:
            yield f"{each} is there {count} times"
    for each in IDS:
        if each not in ids:
            yield f"{each} is missing"
    if sorted(ids) == sorted(IDS) and ids != list(IDS):
        yield f"{next(here for here, wanted in zip(ids, IDS, strict=True) if here != wanted)} is not in its place"


def _faults_of_row(row: Row, tests: list[Test], data: Data, root: Path) -> Iterator[str]:
    if row.status not in STATUSES:
        yield f"{row.id}: the status {row.status!r} is none of {', '.join(STATUSES)}"
    if not _SENTENCE.fullmatch(row.title):
        yield f"{row.id}: the title is no sentence"
    if row.status in (BY_DESIGN, NOT_HERE) and not row.reason:
        yield f"{row.id}: {row.status} without a reason"
    if row.reason and not _SENTENCE.fullmatch(row.reason):
        yield f"{row.id}: the reason is no sentence"
    for path in row.where:
        if not any((folder / path).exists() for folder in (root / "cdr_core", root)):
            yield f"{row.id}: there is no {path}"
    yield from _faults_of_evidence(row, tests, data)


def _faults_of_evidence(row: Row, tests: list[Test], data: Data) -> Iterator[str]:
    shown = [test for test in tests if test.is_through_phases(data)]
    if row.status == SHIPPED and not shown:
        yield f"{row.id}: shipped, and no test shows it through the real phases"
    if row.status == NOT_HERE:
        for test in shown:
            if test.marked:
                yield f"{row.id}: not here, but {test.file}::{test.name} shows it"


def page(data: Data, tests: Iterable[Test], introduction: str) -> str:
    title, _, rest = introduction.partition("\n")
    tests = list(tests)
    parts = [f"{title}\n\n{_NOTICE}\n{rest.replace(COUNTS, _counts(data))}"]
    for topic in data.topics:
        lines = "".join(_line(row, [test for test in tests if row.id in test.rows], data) for row in topic.rows)
        head = "| behaviour | status | where | shown by, or why | id |\n|---|---|---|---|---|\n"
        parts.append(f"## {topic.title}\n{topic.text}\n\n{head}{lines}")
    return "\n".join(parts)


def _counts(data: Data) -> str:
    lines = [f"| topic | {' | '.join(STATUSES)} |", "|---|---|---|---|"]
    for title, rows in [*((topic.title, topic.rows) for topic in data.topics), ("all", data.rows)]:
        counted = Counter(row.status for row in rows)
        lines.append(f"| {title} | {' | '.join(str(counted[status]) for status in STATUSES)} |")
    return "\n".join(lines)


def _line(row: Row, tests: list[Test], data: Data) -> str:
    through = sorted({_name(test) for test in tests if test.is_through_phases(data)})
    parts = sorted({_name(test) for test in tests} - set(through))
    shown = [row.reason, *through, *([f"*parts:* {parts[0]}", *parts[1:]] if parts else [])]
    status = row.status if row.status == SHIPPED else f"**{row.status}**"
    where = ", ".join(f"`{path}`" for path in row.where)
    cells = (row.title, status, where, "<br>".join(each for each in shown if each), row.id)
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"


def _name(test: Test) -> str:
    return f"`{test.file}::{test.name}`"


def current() -> tuple[Data, tuple[Test, ...]]:
    return read_data(DATA.read_text()), all_tests()


def difference() -> str:
    """What is wrong with the rows, or with the page as it lies there; nothing when all is well."""
    data, tests = current()
    found = "\n".join(faults(data, tests))
    if found or (PAGE.is_file() and PAGE.read_text() == page(data, tests, INTRODUCTION.read_text())):
        return found
    return f"docs/{PAGE.name} is not what the rows and tests say; make docs writes it anew"


def main() -> int:
    data, tests = current()
    found = list(faults(data, tests))
    print("\n".join(found) or f"docs/{PAGE.name} written", file=sys.stderr if found else sys.stdout)
    if not found:
        PAGE.write_text(page(data, tests, INTRODUCTION.read_text()))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
