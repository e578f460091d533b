"""Writing a spill set: bodies collect in one reusable buffer, sealed segments are appended, files rotate between
them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
import numpy.typing as npt

from cdr_core.errors import DiskFull, StorageError
from cdr_core.faults import reach
from cdr_core.kernels import frames
from cdr_core.spill.placement import FULL, Place, SetFiles
from cdr_core.spill.segments import HEADER, POSITION_BYTES, Segment, SpillFile, SpillSet
from cdr_core.spill.tiers import Tier
from cdr_core.storage.local import make_directories, start_writing, sync_path

Longs = npt.NDArray[np.int64]

ChannelId = tuple[int, int, int]
"""What a segment belongs to: virtual channel (by its number in the plan), gate, new channel."""


class SpillWriter:
    """Writes into directories of its own; leaving it by an error removes every file it made.

    Records of one virtual channel come in order. A segment is sealed before it grows beyond ``segment_size`` and when
    the virtual channel changes, a file beyond ``file_size``; both are soft, because neither a record nor a segment is
    cut. ``places`` are where segments may lie, the first with room first; without any they lie in ``directory``, where
    the positions of the records and the manifest have their place. ``ship`` is told of every file that is finished, and
    says where it lies from then on.
    """

    def __init__(
        self,
        directory: Path,
        subtask: int,
        segment_size: int,
        file_size: int,
        places: Sequence[Place] = (),
        ship: Callable[[str], str] = str,
    ) -> None:
        make_directories(directory.parent)
        directory.mkdir()
        self._directory, self._subtask = directory, subtask
        self._segment_size, self._file_size = segment_size, file_size
        self._ship = ship
        self._body = np.empty(segment_size, dtype=np.uint8)
        self._used, self._records = 0, 0
        self._key: ChannelId | None = None
        self._open = SetFiles(places or [Place(Tier(str(directory), None), directory, None)])
        self._files: list[SpillFile] = []
        self._segments: list[Segment] = []
        self._positions: BinaryIO | None = None
        self._places: list[bytes] = []

    def __enter__(self) -> SpillWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is not None:
            self.discard()
        if isinstance(error, OSError) and error.errno in FULL:
            raise DiskFull(
                f"no room left in {self._directory}", hint="free some space there, or set CDR_WORKSPACE"
            ) from error
        if isinstance(error, FileNotFoundError):
            raise StorageError(
                f"{error.filename} is gone while the attempt still writes there",
                hint="a newer attempt may have swept it",
            ) from error

    def room(self, channel: ChannelId, size: int) -> npt.NDArray[np.uint8]:
        """Where the next ``size`` bytes of a channel go, to be filled and then told to ``added``.

        Segments end here: when the channel changes, and when ``size`` more would be beyond the segment size.
        """
        if self._key != channel or self._used + size > self._segment_size:
            self._seal()
            self._key = channel
        if size > len(self._body):
            self._body = np.empty(size, dtype=np.uint8)
        return self._body[self._used : self._used + size]

    def added(self, size: int, positions: Longs) -> None:
        """The first ``size`` bytes of the room are filled with whole records, one position each."""
        self._used += size
        self._records += len(positions)
        assert positions.itemsize == POSITION_BYTES
        self._places.append(positions.astype("<i8", copy=False).tobytes())
        if self._used >= self._segment_size:
            self._seal()

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
        needed = int((run_end - run_start).sum())
        target = self.room((virtual_channel, gate, channel), needed)
        frames.gather_runs(source, base, run_start, run_end, target)
        self.added(needed, positions)
        return target

    def seal(self, ledger: tuple[Mapping[str, Any], ...] = ()) -> SpillSet:
        """Close everything; the bytes are on the disk when this returns. The caller publishes the manifest."""
        self._seal()
        if self._positions is not None:  # so that the sync of the segments, which comes first, covers most of it
            start_writing(self._positions.fileno(), 0, self._positions.tell())
        self._close_file()
        positions = None
        if self._positions is not None:
            _close_durably(self._positions)
            positions = self._ship(self._positions.name)
        self._open.sync(self._directory)
        sync_path(self._directory.parent)
        reach("spill.files-durable")
        return SpillSet(self._subtask, tuple(self._files), tuple(self._segments), positions, ledger)

    def flush(self) -> None:
        """End the segment that is being filled, so that everything added so far can be read back."""
        self._seal()

    @property
    def segments(self) -> Sequence[Segment]:
        """Those that have ended so far; they can be read back before the set is sealed."""
        return self._segments

    def path_of(self, file: int) -> str:
        """Where a file that segments name lies at the moment."""
        return self._files[file].path if file < len(self._files) else str(self._open.path)

    @property
    def positions(self) -> str | None:
        """The file of the records' positions."""
        return None if self._positions is None else self._positions.name

    def discard(self) -> None:
        """Remove the whole set. An error here would hide the one that led here, so the sweep gets what is left."""
        with suppress(OSError):
            self._open.discard()
        if self._positions is not None:
            with suppress(OSError):
                self._positions.close()
        with suppress(OSError):
            for path in self._directory.iterdir():
                path.unlink(missing_ok=True)
            self._directory.rmdir()

    def _seal(self) -> None:
        if self._key is None or self._used == 0:
            return
        virtual_channel, gate, channel = self._key
        body, places = self._body[: self._used], b"".join(self._places)
        segment = Segment(
            file=len(self._files),
            offset=self._open.bytes,
            gate=gate,
            channel=channel,
            length=self._used,
            records=self._records,
            crc32c=google_crc32c.value(body),
            virtual_channel=virtual_channel,
            positions_crc32c=google_crc32c.value(places),
        )
        self._open.append([memoryview(HEADER.pack(gate, channel, self._used)), body.data])
        self._segments.append(segment)
        self._write_positions(places)
        self._used = self._records = 0
        self._places = []
        if self._open.bytes >= self._file_size:
            self._close_file()

    def _close_file(self) -> None:
        file = self._open.close()
        if file is not None:
            self._files.append(SpillFile(self._ship(file.path), file.bytes))

    def _write_positions(self, places: bytes) -> None:
        """Not into a buffer: a segment that has ended can be read back, and its records need their places."""
        if self._positions is None:
            self._positions = (self._directory / "positions").open("xb")
        self._positions.write(places)
        self._positions.flush()


def _close_durably(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
