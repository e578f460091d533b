"""The checkpoint that ships with cdr: where it lies once unpacked, and how to ask for its recovery."""

from __future__ import annotations

import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ARCHIVE = REPOSITORY / "tests" / "fixtures" / "flink-2.3.0" / "a_p3_thr0.tar.gz"
SPEC = REPOSITORY / "tests" / "fixtures" / "specs" / "a.yaml"
PARALLELISM = "2"


@dataclass(frozen=True, slots=True)
class Shipped:
    """The demo's folder in a home. Nothing in it exists before :meth:`unpack`."""

    folder: Path

    @property
    def checkpoint(self) -> Path:
        return self.folder / "a_p3_thr0" / "chk-2"

    @property
    def spec(self) -> Path:
        return self.folder / "spec.yaml"

    @property
    def is_unpacked(self) -> bool:
        return (self.checkpoint / "_metadata").is_file() and self.spec.is_file()

    def unpack(self) -> None:
        """Put checkpoint and spec in place; does nothing where they are."""
        if self.is_unpacked:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(ARCHIVE) as archive:
            # The first releases of Python 3.11 have no filters; the archive is our own.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(self.folder)
        # Last, because both together are the sign that everything is there.
        shutil.copyfile(SPEC, self.spec)

    def next_output(self) -> Path:
        """A folder that no recovery has published to: the same checkpoint and target would be the same recovery."""
        number = 1
        while (folder := self.folder / f"output-{number}").exists():
            number += 1
        return folder


def shipped(home: Path) -> Shipped:
    """The demo of the home ``home``."""
    return Shipped(home / "demo")
