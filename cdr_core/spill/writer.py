"""Writing a spill set: bodies collect in one reusable buffer, sealed segments are appended, files rotate between
them.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import google_crc32c
import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import Entry
from cdr_core.errors import DiskFull
from cdr_core.faults import reach
from cdr_core.kernels import frames
from cdr_core.spill.segments import HEADER, POSITION_BYTES, Segment, SpillFile, SpillSet
from cdr_core.storage.local import sync_directory

Longs = npt.NDArray[np.int64]


class SpillWriter:
    """Writes into a directory of its own; leaving it by an error removes every file it made.

    ``append`` takes runs of one virtual channel in order. A segment is sealed beyond ``segment_size`` or when the
    virtual channel changes, a file beyond ``file_size``; both are soft, because neither a record nor a segment is
    cut.
    """

    def __init__(self, directory: Path, subtask: int, segment_size: int, file_size: int) -> None:
        directory.mkdir(parents=True, exist_ok=False)
        self._directory, self._subtask = directory, subtask
        self._segment_size, self._file_size = segment_size, file_size
        self._body = np.empty(2 * segment_size, dtype=np.uint8)
        self._used, self._records = 0, 0
        self._key: tuple[int, int, int] | None = None
        self._file: BinaryIO | None = None
        self._file_bytes = 0
        self._files: list[SpillFile] = []
        self._segments: list[Segment] = []
        self._positions: BinaryIO | None = None

    def __enter__(self) -> SpillWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is not None:
            self._discard()
        if isinstance(error, OSError) and error.errno == 28:
            raise DiskFull(
                f"no room left in spill directory {self._directory}", hint="free some space or add a spill directory"
            ) from error

    def append(
        self,
        virtual_channel: int,
        gate: int,
        channel: int,
        source: npt.NDArray[np.uint8],
        base: int,
        run_start: Longs,
        run_end: Longs,
        positions: Longs,
    ) -> npt.NDArray[np.uint8]:
        """Add records: the runs lie in ``source``, whose first byte is logical ``base``; one position per record.

        Returns the bytes just added, for whoever tallies them; valid until the next call.
        """
        if self._key != (virtual_channel, gate, channel):
            self._seal()
            self._key = (virtual_channel, gate, channel)
        needed = int((run_end - run_start).sum())
        if self._used + needed > len(self._body):
            self._seal()
        if needed > len(self._body):
            self._body = np.empty(needed, dtype=np.uint8)
        added = self._body[self._used : self._used + needed]
        frames.gather_runs(source, base, run_start, run_end, added)
        self._used += needed
        self._records += len(positions)
        self._write_positions(positions)
        if self._used >= self._segment_size:
            self._seal()
        return added

    def seal(self, ledger: tuple[Entry, ...]) -> SpillSet:
        """Close everything; the bytes are on the disk when this returns. The caller publishes the manifest."""
        self._seal()
        self._close_file()
        positions = None
        if self._positions is not None:
            _close_durably(self._positions)
            positions = self._positions.name
        sync_directory(self._directory)
        reach("spill.files-durable")
        return SpillSet(self._subtask, tuple(self._files), tuple(self._segments), positions, ledger)

    def _seal(self) -> None:
        if self._key is None or self._used == 0:
            return
        virtual_channel, gate, channel = self._key
        body = self._body[: self._used].data
        file = self._open_file()
        self._segments.append(
            Segment(
                file=len(self._files),
                offset=self._file_bytes,
                gate=gate,
                channel=channel,
                length=self._used,
                records=self._records,
                crc32c=google_crc32c.value(bytes(body)),
                virtual_channel=virtual_channel,
            )
        )
        file.write(HEADER.pack(gate, channel, self._used))
        file.write(body)
        self._file_bytes += HEADER.size + self._used
        self._used = self._records = 0
        if self._file_bytes >= self._file_size:
            self._close_file()

    def _open_file(self) -> BinaryIO:
        if self._file is None:
            self._file = (self._directory / f"spill-{len(self._files):05d}").open("xb", buffering=0)
            self._file_bytes = 0
        return self._file

    def _close_file(self) -> None:
        if self._file is None:
            return
        _close_durably(self._file)
        self._files.append(SpillFile(str(self._directory / f"spill-{len(self._files):05d}"), self._file_bytes))
        self._file = None

    def _write_positions(self, positions: Longs) -> None:
        if self._positions is None:
            self._positions = (self._directory / "positions").open("xb")
        self._positions.write(positions.astype("<i8", copy=False).tobytes())
        assert positions.itemsize == POSITION_BYTES

    def _discard(self) -> None:
        for file in (self._file, self._positions):
            if file is not None:
                file.close()
        for path in self._directory.iterdir():
            path.unlink(missing_ok=True)
        self._directory.rmdir()


def _close_durably(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
