"""The files of one spill set, each in the first tier that has room.

Where a file lies never changes what is in it: a tier that fills up under an open file passes it on, whole, to the next
one with room. So files are cut by their input and by sizes alone, and a set that is made again elsewhere has the same
segments.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cdr_core.errors import DiskFull, StorageError
from cdr_core.faults import reach
from cdr_core.settings import MIB
from cdr_core.spill.reservations import Reservations
from cdr_core.spill.router import route
from cdr_core.spill.spill_set import SpillFile
from cdr_core.spill.tiers import SETTING, Tier, is_memory
from cdr_core.storage.local import make_directories, start_writing, sync_path

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})
MOST_AHEAD = 16 * MIB
SHARES_AHEAD = 64
"""A set reserves so much ahead, but no more than this share of a tier: what it holds and does not use, others lack."""
START_BYTES = 4 * MIB
"""How much is written before the disk is asked to begin with it; the sync at the end of a file waits for the rest."""
_MISSING = "there is no longer a"
_HINT = f"free some space, or give {SETTING} larger or more directories, and run it again"


class Place:
    """One tier as one set sees it: its own directory there, and its share of the capacity."""

    def __init__(self, tier: Tier, directory: Path, reservations: Reservations | None) -> None:
        self.tier, self.directory = tier, directory
        self.memory = is_memory(tier.path)
        self.trouble = ""
        """Why nothing more goes here; empty while it is usable."""
        self.left = False
        """Whether a file of this set was begun here and carried elsewhere."""
        self._reservations = reservations
        self._spare = 0

    @classmethod
    def of_attempt(cls, tier: Tier, recovery: str, epoch: int, name: str) -> Place:
        """The place of the set ``name`` of an attempt."""
        reservations = None if tier.capacity is None else Reservations(tier, recovery, epoch)
        return cls(tier, tier.attempt(recovery, epoch, "spill", name), reservations)

    def take(self, size: int) -> bool:
        """Reserve room, as far as a capacity says there is; a tier in trouble has none."""
        if self.trouble:
            return False
        if self._reservations is None:
            return True
        try:
            return self._take(self._reservations, size)
        except OSError as error:
            return self.fails(error)

    def _take(self, reservations: Reservations, size: int) -> bool:
        """From what is reserved ahead, else from the ledger; its lock is too dear to be taken for every segment."""
        if size > self._spare:
            missing = size - self._spare
            ahead = min(MOST_AHEAD, (self.tier.capacity or 0) // SHARES_AHEAD)
            if reservations.take(missing + ahead):
                self._spare += missing + ahead
            elif reservations.take(missing):
                self._spare += missing
            else:
                return False
        self._spare -= size
        return True

    def settle(self) -> None:
        """Give back what was reserved ahead and not used."""
        if self._spare:
            self.give_back(self._spare)
            self._spare = 0

    def give_back(self, size: int) -> None:
        """End a reservation. What cannot be given back now is counted anew by the next attempt."""
        if self._reservations is not None:
            with suppress(OSError):
                self._reservations.give_back(size)

    def fails(self, error: OSError) -> bool:
        """Remember that the disk itself is full or gone, and go on elsewhere; any other error ends the set."""
        if error.errno not in FULL | _GONE:
            raise self.failed(error) from error
        self.trouble = "no room left in" if error.errno in FULL else _MISSING
        return False

    def failed(self, error: OSError) -> StorageError:
        """The error as one sentence that names the directory."""
        if error.errno in FULL:
            return DiskFull(f"no room left in spill directory {self.tier.path}", hint=_HINT)
        return StorageError(f"cannot write to spill directory {self.tier.path}: {error.strerror or error}", hint=_HINT)

    def prepare(self) -> None:
        """Make the set's directory. The tier itself must be there: below an empty mount point nothing is made."""
        if not Path(self.tier.path).is_dir():
            raise FileNotFoundError(errno.ENOENT, "no such directory", self.tier.path)
        make_directories(self.directory)


class SetFiles:
    """Appends to one file after another; ``close`` ends a file, ``discard`` removes all of them."""

    def __init__(self, places: Sequence[Place]) -> None:
        self._places = tuple(places)
        self._place: Place | None = None
        self._descriptor = -1
        self._path = Path()
        self._bytes = self._started = 0
        self._made: list[tuple[Path, Place, int]] = []

    def append(self, pieces: Sequence[memoryview]) -> None:
        """Add to the open file (or a new one), in whichever tier has room; ``DiskFull`` when none has."""
        size = sum(len(piece) for piece in pieces)
        if self._place is not None and self._place.take(size) and self._write(self._place, pieces, size):
            return
        # A tier that an open file had to leave is asked last: the next file would only be carried out of it again.
        for place in sorted(self._places, key=lambda place: place.left):
            if place is self._place or (place.memory and route(disk_non_empty=self._has_disk, room=True).appends):
                continue
            if not place.take(self._bytes + size):
                continue
            if self._carry(place, size) and self._write(place, pieces, size):
                return
        raise self._no_room()

    @property
    def _has_disk(self) -> bool:
        """Whether something of the set lies on a disk: nothing that comes later goes to memory then."""
        on_disk = [place for _, place, _ in self._made if not place.memory]
        return bool(on_disk) or (self._place is not None and not self._place.memory)

    @property
    def bytes(self) -> int:
        """Bytes of the open file."""
        return self._bytes

    def close(self) -> SpillFile | None:
        """Make the open file durable and end it; ``None`` when there is none, so that no file is ever empty."""
        if self._place is None:
            return None
        assert self._bytes > 0
        reach("spill.file-full")
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._place.failed(error) from error
        os.close(self._descriptor)
        self._made.append((self._path, self._place, self._bytes))
        self._place.settle()  # so that the next file asks the ledger, which knows of a newer attempt
        file = SpillFile(str(self._path), self._bytes, self._place.memory)
        self._place, self._descriptor, self._bytes = None, -1, 0
        return file

    def sync(self, home: Path) -> None:
        """The set is complete: make the names durable, those in its ``home`` too, and let others have the room that was
        reserved ahead.
        """
        for place in self._places:
            place.settle()
        for directory in {home, *(path.parent for path, _, _ in self._made)}:
            sync_path(directory)

    def discard(self) -> None:
        """Remove every file of the set, whatever state it is in; what a sweep removed before is no error."""
        if self._place is not None:
            os.close(self._descriptor)
            self._made.append((self._path, self._place, self._bytes))
            self._place = None
        for path, place, size in self._made:
            path.unlink(missing_ok=True)
            place.give_back(size)
        for place in self._places:
            place.settle()
            with suppress(OSError):
                place.directory.rmdir()
        self._made = []

    def _write(self, place: Place, pieces: Sequence[memoryview], size: int) -> bool:
        """Write at the end of the open file; a disk that is full leaves it as it was."""
        try:
            if self._place is None:
                self._open(place)
            reach("spill.write")
            _write_all(self._descriptor, pieces)
        except OSError as error:
            place.give_back(size)
            going_on = place.fails(error)
            if self._place is not None:
                os.ftruncate(self._descriptor, self._bytes)
                os.lseek(self._descriptor, self._bytes, os.SEEK_SET)
            return going_on
        self._bytes += size
        if self._bytes - self._started >= START_BYTES:
            start_writing(self._descriptor, self._started, self._bytes - self._started)
            self._started = self._bytes
        return True

    def _open(self, place: Place) -> None:
        place.prepare()
        path = place.directory / f"spill-{len(self._made):05d}"
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._path, self._place, self._bytes, self._started = path, place, 0, 0

    def _carry(self, place: Place, size: int) -> bool:
        """Move the open file to another tier, where room for it and ``size`` more is reserved."""
        if self._place is None:
            return True
        source, old_path, old_place, length = self._descriptor, self._path, self._place, self._bytes
        self._place = None
        try:
            self._open(place)
            with os.fdopen(os.dup(source), "rb") as reader, os.fdopen(os.dup(self._descriptor), "wb") as writer:
                reader.seek(0)
                shutil.copyfileobj(reader, writer, 1 << 20)
        except OSError as error:
            if self._place is not None:
                os.close(self._descriptor)
                self._path.unlink(missing_ok=True)
            self._descriptor, self._path, self._place, self._bytes = source, old_path, old_place, length
            place.give_back(length + size)
            return place.fails(error)
        self._bytes = length
        os.close(source)
        old_path.unlink()
        old_place.give_back(length)
        old_place.left = True
        old_place.settle()
        with suppress(OSError):  # earlier files of the set may be in it
            old_place.directory.rmdir()
        return True

    def _no_room(self) -> StorageError:
        reasons = "; ".join(
            f"{place.trouble or 'the capacity is used up of'} spill directory {place.tier.path}"
            for place in self._places
        )
        gone = all(place.trouble == _MISSING for place in self._places)
        return StorageError(reasons, hint=_HINT) if gone else DiskFull(reasons, hint=_HINT)


def _write_all(descriptor: int, pieces: Sequence[memoryview]) -> None:
    """Every byte, however few the system takes at once."""
    left = [piece for piece in pieces if len(piece)]
    while left:
        written = os.writev(descriptor, left)
        while left and written >= len(left[0]):
            written -= len(left[0])
            left.pop(0)
        if written:
            left[0] = left[0][written:]
