"""Real checkpoints: unpacked once, with what Flink's own classes read in them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.checkpoints import unpack
from tests.support.relocate import JOB_FILE

REPOSITORY = Path(__file__).parents[3]
ARCHIVES = sorted((REPOSITORY / "tests" / "fixtures").glob("flink-*/*.tar.gz"))


@dataclass(frozen=True)
class RealCheckpoint:
    """A directory with ``_metadata``, and the oracle's lines; none where the oracle was not run."""

    directory: Path
    oracle: tuple[dict[str, Any], ...]

    @property
    def metadata(self) -> bytes:
        return (self.directory / "_metadata").read_bytes()

    def file(self, uri: str) -> Path:
        """A file that the metadata names. Absolute paths are those of the place where the checkpoint was made."""
        if not uri.startswith("file:"):
            return Path(uri)
        home = self.directory.parent
        place = json.loads((home / JOB_FILE).read_text())["place"]
        return home / Path(uri.removeprefix("file://")).relative_to(place.removeprefix("file:"))

    def lines(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.oracle if line["type"] == kind]


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("checkpoints")
    for archive in ARCHIVES:
        unpack(archive, root)
    return root


@pytest.fixture(scope="session")
def real_checkpoints(unpacked: Path) -> dict[str, RealCheckpoint]:
    """By ``name/chk-N``."""
    found = {
        f"{path.parent.parent.name}/{path.parent.name}": RealCheckpoint(path.parent, tuple(_oracle(path.parent)))
        for path in sorted(unpacked.glob("*/chk-*/_metadata"))
    }
    assert len(found) >= len(ARCHIVES) > 0
    return found


def _oracle(directory: Path) -> Iterator[dict[str, Any]]:
    path = directory.with_name(f"{directory.name}.oracle.jsonl.gz")
    if path.exists():
        with gzip.open(path, "rt") as lines:
            yield from (json.loads(line) for line in lines if '"type":"element"' not in line)
