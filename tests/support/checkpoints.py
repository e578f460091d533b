"""The checkpoints that ship with the tests, unpacked once a session and watched: no test may change one."""

from __future__ import annotations

import hashlib
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.support.oracle import Oracle

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"

SHIPPED = (
    ("a_p3_thr0", 1),
    ("a_p3_thr0", 2),
    ("a_p3_thr1mb", 2),
    ("b_p3_thr0", 2),
    ("c_p7_thr0", 2),
    ("d_p4_thr0", 2),
    ("e_p4_seg32k", 2),
    ("f_p3_thr0", 2),
    ("g_p7_thr0", 2),
    ("r_p3_rocks_inc_true", 2),
    ("v5_a_p3_thr0", 1),
)
"""Checkpoints by name and number whose every element Flink's own classes have read, besides those of the harness."""

SPEC_OF = {"l": "a", "r": "a", "v": "a"}
"""Specs go by the first letter of a checkpoint's name; these jobs are job a with other state, another state backend or
another version."""


@dataclass(frozen=True)
class FixtureCheckpoint:
    """One checkpoint: its folder, the job spec that fits it, and what Flink read in it."""

    name: str
    path: Path
    spec: Path

    @cached_property
    def oracle(self) -> Oracle:
        """Parsed when first asked for; two re-written checkpoints have none."""
        file = self.path.with_name(f"{self.path.name}.oracle.jsonl.gz")
        assert file.is_file(), f"{self.name}/{self.path.name} was shipped without an oracle"
        return Oracle(file)

    def copy(self, to: Path) -> Path:
        """A copy for a test that wants to damage it."""
        return Path(shutil.copytree(self.path, to))


class FixtureCheckpoints:
    """Gives ``fixture_checkpoint(name, n)``; ``prepare`` may change what was unpacked before anybody sees it."""

    def __init__(self, folder: Path, prepare: Callable[[Path], None] = lambda _: None) -> None:
        self._folder, self._prepare = folder, prepare
        self._unpacked: dict[str, str] = {}
        self._given: dict[tuple[str, int], FixtureCheckpoint] = {}

    def __call__(self, name: str, n: int = 2) -> FixtureCheckpoint:
        if name not in self._unpacked:
            self._unpack(name)
        if (name, n) not in self._given:
            path = self._folder / name / f"chk-{n}"
            assert path.is_dir(), f"{name} has no chk-{n}"
            spec = FIXTURES / "specs" / f"{SPEC_OF.get(name[0], name[0])}.yaml"
            self._given[name, n] = FixtureCheckpoint(name, path, spec)
        return self._given[name, n]

    def changed(self) -> list[str]:
        """Names whose files are no longer those that were unpacked."""
        return [name for name, digest in self._unpacked.items() if _digest(self._folder / name) != digest]

    def _unpack(self, name: str) -> None:
        (archive,) = FIXTURES.glob(f"flink-*/{name}.tar.gz")
        unpack(archive, self._folder)
        self._prepare(self._folder / name)
        self._unpacked[name] = _digest(self._folder / name)


def unpack(archive: Path, folder: Path) -> None:
    """Extract one of our own archives. ``extractall(filter=…)`` would need Python 3.11.4."""
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(folder)


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
