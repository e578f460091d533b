"""Rules about files that no other tool knows: what the lock must hold, and what no file may name."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lockfile import read_lock

ROOT = Path(__file__).resolve().parent.parent

_NOT_OURS = {".git", ".venv", ".cdr", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}
_NOT_OURS |= {".import_linter_cache", "build", "dist"}
_LARGEST_TEXT = 1024 * 1024

_OF_A_TEST_FILE = re.compile(r"^\s*(?:from [\w.]*\btest_\w+ import|from [\w.]+ import test_\w+$|import [\w.]*\btest_)")

_FOREIGN = (
    (
        "the host of a package registry",
        re.compile(r"://[^/\s]*(?:registry|pypi|python[h]osted|npm[j]s|maven|artifact|nexus)"),
    ),
    ("an option that names a registry", re.compile(r"--(?:extra-)?index-url[ =]|--find-links[ =]")),
    ("a home directory", re.compile(r"(?<![\w.])/(?:home/[a-z]|Users/[A-Za-z]|root/)")),
)


def faults_of_lock(root: Path = ROOT) -> Iterator[str]:
    """Every package hashed, no address, and everything pyproject.toml asks for in a version it allows."""
    lock = root / "requirements.lock"
    if "://" in lock.read_text():
        yield f"{lock.name} names an address"
    pins = read_lock(lock)
    yield from (f"{pin.name} has no hash" for group in pins.values() for pin in group if not pin.hashes)
    for wanted in _wanted(root):
        found = pins.get(canonicalize_name(wanted.name), [])
        if not found:
            yield f"{wanted.name} is in pyproject.toml and not in {lock.name}; make lock adds it"
        yield from (
            f"{pin.name} {pin.version} is locked, but pyproject.toml asks for {wanted.specifier}; make lock"
            for pin in found
            if pin.version not in wanted.specifier
        )


def _wanted(root: Path) -> list[Requirement]:
    pyproject = tomllib.loads((root / "pyproject.toml").read_text())
    extras = chain.from_iterable(pyproject["project"]["optional-dependencies"].values())
    lines = [*pyproject["project"]["dependencies"], *extras, *pyproject["dependency-groups"]["dev"]]
    return [Requirement(line) for line in lines]


def faults_of_files(root: Path = ROOT) -> Iterator[str]:
    """Names that are of one machine or one registry; a checkout must work the same everywhere."""
    rules = (*_FOREIGN, ("the path of this checkout", re.compile(rf"(?<![\w.]){re.escape(str(root))}(?![\w-])")))
    for path in _files(root):
        for number, line in enumerate(_lines(path), start=1):
            for what, pattern in rules:
                if pattern.search(line):
                    yield f"{path.relative_to(root)}:{number} names {what}"


def faults_of_imports(root: Path = ROOT) -> Iterator[str]:
    """Imports out of test files: running one test would load another, and neither could be renamed or removed alone."""
    for path in sorted((root / "tests").rglob("*.py")):
        for number, line in enumerate(_lines(path), start=1):
            if _OF_A_TEST_FILE.search(line):
                name = path.relative_to(root)
                yield f"{name}:{number} imports out of a test file; tests/support or a file beside it is for helpers"


def _files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _NOT_OURS and not name.endswith(".egg-info"))
        if Path(folder) == root and "docker" in folders:
            folders.remove("docker")  # paths in there are those of containers
        yield from (Path(folder) / name for name in sorted(names))


def _lines(path: Path) -> list[str]:
    """Lines of a text file; nothing of a binary or a large one, which no one wrote by hand."""
    if path.is_symlink() or path.stat().st_size > _LARGEST_TEXT:
        return []
    try:
        return path.read_text().splitlines()
    except UnicodeDecodeError:
        return []
