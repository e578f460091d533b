"""Writing a spill set: segments are appended to files, which rotate between them and lie where there is room."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import google_crc32c
import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import Ledger
from cdr_core.errors import DiskFull, StorageError
from cdr_core.faults import reach
from cdr_core.spill.spill_set import NO_REFERENCES, IndexBuilder, References, SpillFile, SpillSet
from cdr_core.spill.tiered_files import FULL, Place, SetFiles
from cdr_core.spill.tiers import Tier
from cdr_core.storage.local import make_directories, sync_path

Longs = npt.NDArray[np.int64]

RUNS = "runs"
"""The file of a set that says at which positions the elements of each segment were."""


class SetWriter:
    """Writes into directories of its own; leaving it by an error removes every file it made.

    ``places`` are where files may lie, the first with room first; without any they lie in ``directory``. ``ship`` is
    told of every file that is finished, and says where it lies from then on.
    """

    def __init__(
        self,
        directory: Path,
        subtask: int,
        file_size: int,
        places: Sequence[Place] = (),
        ship: Callable[[str], str] = str,
    ) -> None:
        _make(directory)
        self._directory, self._subtask, self._file_size, self._ship = directory, subtask, file_size, ship
        self._open = SetFiles(places or [Place(Tier(str(directory), None), directory, None)])
        self._files: list[SpillFile] = []
        self._index = IndexBuilder()
        self._runs: BinaryIO | None = None

    def __enter__(self) -> SetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is not None:
            self._discard()
        if isinstance(error, OSError) and error.errno in FULL:
            raise DiskFull(
                f"no room left in {self._directory}", hint="free some space there, or set CDR_WORKSPACE"
            ) from error
        if isinstance(error, FileNotFoundError):
            raise StorageError(
                f"{error.filename} is gone while the attempt still writes there",
                hint="a newer attempt may have swept it",
            ) from error

    def append(
        self,
        body: npt.NDArray[np.uint8],
        lines: Longs,
        lengths: Longs,
        elements: Longs,
        runs: tuple[Longs, ...],
        references: References = NO_REFERENCES,
    ) -> None:
        """A segment and its pieces. ``body`` is those that are no references; ``runs`` are how many each piece has, the
        first position of each run, and its elements.
        """
        counts, positions, of_run = runs
        listed = np.concatenate((positions, of_run)).astype("<i8", copy=False).tobytes()
        sums = google_crc32c.value(body), google_crc32c.value(listed)
        place = (len(self._files), self._open.bytes, int(lengths.sum()), *sums)
        if len(body):
            self._open.append([body.data])
        if self._runs is None:
            self._runs = (self._directory / RUNS).open("xb")
        self._runs.write(listed)
        self._index.add(place, lines, lengths, elements, counts, references)
        if self._open.bytes >= self._file_size:
            self._close_file()

    def seal(self, ledger: Ledger) -> SpillSet:
        """Close everything; the bytes are on the disk when this returns. The caller publishes the manifest."""
        self._close_file()
        self._close_runs()
        self._open.sync(self._directory)
        sync_path(self._directory.parent)
        reach("spill.files-durable")
        return self._index.seal(self._subtask, tuple(self._files), ledger)

    def _close_file(self) -> None:
        file = self._open.close()
        if file is not None:
            self._files.append(replace(file, path=self._ship(file.path)))

    def _close_runs(self) -> None:
        """The last file of the set. It lies in the set's own directory, not in a tier."""
        if self._runs is not None:
            self._runs.flush()
            os.fsync(self._runs.fileno())
            size = self._runs.tell()
            self._runs.close()
            self._files.append(SpillFile(self._ship(str(self._directory / RUNS)), size))

    def _discard(self) -> None:
        """Remove the whole set. An error here would hide the one that led here, so the sweep gets what is left."""
        if self._runs is not None:
            with suppress(OSError):
                self._runs.close()
        with suppress(OSError):
            self._open.discard()
        with suppress(OSError):
            for path in self._directory.iterdir():
                path.unlink(missing_ok=True)
            self._directory.rmdir()


def _make(directory: Path) -> None:
    """A new directory and those above it, which a task that ends may just be taking away because they are empty."""
    for _ in range(9):
        with suppress(FileNotFoundError):
            make_directories(directory.parent)
            directory.mkdir()
            return
    directory.mkdir()
