"""The checkpoint that ships with cdr: its place once unpacked, and the parameters of its recovery."""

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
        """Put checkpoint and spec in place; do nothing if they are there."""
        if self.is_unpacked:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(ARCHIVE) as archive:
            # The first releases of Python 3.11 have no filters; cdr itself made the archive.
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            archive.extractall(self.folder)
        # Last, because the two together mark it as complete.
        shutil.copyfile(SPEC, self.spec)

    def next_output(self) -> Path:
        """Return a folder that no recovery has published to: the same checkpoint and target would be the
        same recovery.
        """
        number = 1
        while (folder := self.folder / f"output-{number}").exists():
            number += 1
        return folder


def shipped(home: Path) -> Shipped:
    """Return the demo of the home ``home``."""
    return Shipped(home / "demo")
