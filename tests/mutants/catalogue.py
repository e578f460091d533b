"""The list of mutants: which text of a file is replaced by which, and the tests that must fail then."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent.parent
HERE = Path(__file__).resolve().parent


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``find`` occurs once in ``file``; ``why`` is the fault that ``replace`` imitates.

    ``tests`` are node ids for pytest. ``explained`` says why no test can notice the fault: the mutant may survive then.
    """

    id: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]
    why: str
    explained: str = ""

    @property
    def area(self) -> str:
        return self.id.partition("-")[0]

    def apply(self, text: str) -> str:
        """The text of the file with the fault. Raise ``ValueError`` if ``find`` is not there exactly once."""
        if (count := text.count(self.find)) != 1:
            raise ValueError(f"mutant {self.id}: its text occurs {count} times in {self.file}")
        return text.replace(self.find, self.replace)


class Gone(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mutant of the audit whose code does not exist any more: where it was, and what took the place of the code."""

    was: str
    fault: str
    now: str


class Area(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the catalogue; ids begin with its name."""

    mutant: tuple[Mutant, ...] = ()
    gone: tuple[Gone, ...] = ()


def areas() -> dict[str, Area]:
    """The catalogue by area."""
    files = sorted(HERE.glob("*.toml"))
    return {file.stem: msgspec.convert(tomllib.loads(file.read_text()), Area) for file in files}


def catalogue() -> list[Mutant]:
    """All mutants, in the order of areas and files."""
    return [mutant for area in areas().values() for mutant in area.mutant]


def faults(mutants: Sequence[Mutant]) -> Iterator[str]:
    """What is wrong with the list, a sentence each: texts that do not fit, ids given twice, tests that are missing."""
    seen: set[str] = set()
    for mutant in mutants:
        if mutant.id in seen:
            yield f"mutant {mutant.id}: there are two of this id"
        seen.add(mutant.id)
        try:
            changed = mutant.apply((ROOT / mutant.file).read_text())
            ast.parse(changed)
        except (OSError, ValueError, SyntaxError) as error:
            yield f"{error}" if mutant.id in str(error) else f"mutant {mutant.id}: {error}"
        if mutant.find == mutant.replace:
            yield f"mutant {mutant.id}: nothing is changed"
        for node in mutant.tests:
            file, _, name = node.partition("::")
            if name.partition("[")[0] not in _tests_in(ROOT / file):
                yield f"mutant {mutant.id}: there is no test {node}"
        if not mutant.tests:
            yield f"mutant {mutant.id}: it names no test"


@cache
def _tests_in(file: Path) -> set[str]:
    """The names of a file's tests."""
    if not file.is_file():
        return set()
    found = ast.parse(file.read_text()).body
    return {each.name for each in found if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")}
