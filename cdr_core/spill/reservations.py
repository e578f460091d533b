"""Who holds how much of a tier: a small ledger in its directory, changed under a lock by every process of this host.

Executors never talk to the database, so tasks that share a tier meet here. A reservation comes before its bytes and
ends after them, which keeps the sum of the bytes below the capacity at every moment. Reservations are an attempt's: a
new epoch counts what older ones of its recovery really left on the disk and forgets what they meant to write.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from cdr_core.errors import Fenced
from cdr_core.spill.tiers import Tier

LEDGER = ".cdr-tier.json"
LOCK = ".cdr-tier.lock"
LEDGER_VERSION = 1
_EPOCH = re.compile(r"^e(\d+)$")

Held = dict[tuple[str, int], int]
"""Bytes by (recovery, epoch)."""


class Reservations:
    """The share of one attempt in a tier that has a capacity; safe between threads and processes of one host."""

    def __init__(self, tier: Tier, recovery: str, epoch: int) -> None:
        assert tier.capacity is not None, "a tier without a limit needs no ledger"
        self._tier, self._capacity = tier, tier.capacity
        self._recovery, self._epoch = recovery, epoch

    def take(self, size: int) -> bool:
        """Reserve; ``False`` if the tier would be over its capacity. ``Fenced`` once a newer attempt is at work."""
        with _ledger(self._tier) as held:
            mine = (self._recovery, self._epoch)
            if any(recovery == self._recovery and epoch > self._epoch for recovery, epoch in held):
                raise Fenced(f"a newer attempt at recovery {self._recovery} spills into {self._tier.path}")
            if mine not in held:
                _settle(self._tier, held, self._recovery)
            held[mine] = held.get(mine, 0)
            if sum(held.values()) + size > self._capacity:
                return False
            held[mine] += size
            return True

    def give_back(self, size: int) -> None:
        """The bytes are gone, or were never written."""
        give_back(self._tier, self._recovery, self._epoch, size)


def give_back(tier: Tier, recovery: str, epoch: int, size: int) -> None:
    """Files of that attempt were deleted."""
    with _ledger(tier) as held:
        held[recovery, epoch] = max(0, held.get((recovery, epoch), 0) - size)


def held_in(tier: Tier, without: Collection[str] = ()) -> int:
    """Bytes that recoveries hold of a tier, ``without`` those of some; none where nothing was ever reserved."""
    if not (Path(tier.path) / LEDGER).is_file():
        return 0
    return sum(size for (recovery, _), size in _load(tier).items() if recovery not in without)


def settle(tier: Tier, recovery: str, keep: int | None) -> None:
    """Count what a recovery's attempts have on the disk, except that of epoch ``keep``, which may be writing.

    ``None`` = the recovery is over: what is left on the disk still counts, and no attempt is fenced any more.
    """
    with _ledger(tier) as held:
        writing = None if keep is None else held.get((recovery, keep))
        _settle(tier, held, recovery)
        for key in [key for key, size in held.items() if key[0] == recovery and keep is None and not size]:
            del held[key]
        if keep is not None and writing is not None:
            held[recovery, keep] = writing


def _settle(tier: Tier, held: Held, recovery: str) -> None:
    for key in [key for key in held if key[0] == recovery]:
        del held[key]
    held.update(_on_disk(Path(tier.path) / recovery))


def _on_disk(directory: Path) -> Held:
    """What the attempts at one recovery have in a tier, by the files themselves."""
    found: Held = {}
    for epoch in directory.iterdir() if directory.is_dir() else ():
        if match := _EPOCH.match(epoch.name):
            sizes = [_size(Path(parent, name)) for parent, _, names in os.walk(epoch) for name in names]
            found[directory.name, int(match.group(1))] = sum(sizes)
    return found


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0


@contextmanager
def _ledger(tier: Tier) -> Iterator[Held]:
    """The ledger, locked; what the block made of it is stored at its end."""
    lock = os.open(Path(tier.path) / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        held = _load(tier)
        yield held
        _store(tier, {key: size for key, size in held.items() if size > 0 or _is_newest(held, key)})
    finally:
        os.close(lock)


def _is_newest(held: Held, key: tuple[str, int]) -> bool:
    """The newest epoch stays even when it holds nothing: it is what older attempts are fenced by."""
    return all(recovery != key[0] or epoch <= key[1] for recovery, epoch in held)


def _load(tier: Tier) -> Held:
    try:
        value = json.loads((Path(tier.path) / LEDGER).read_text())
        if value["version"] == LEDGER_VERSION:
            return {(recovery, epoch): size for recovery, epoch, size in value["held"]}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        pass
    # Lost or damaged: the files themselves are the better ledger.
    held: Held = {}
    for directory in Path(tier.path).iterdir():
        if directory.is_dir() and not directory.is_symlink():
            held.update(_on_disk(directory))
    return held


def _store(tier: Tier, held: Held) -> None:
    temporary = Path(tier.path) / f"{LEDGER}.tmp"
    rows = [[recovery, epoch, size] for (recovery, epoch), size in held.items()]
    temporary.write_text(json.dumps({"version": LEDGER_VERSION, "held": rows}))
    temporary.replace(Path(tier.path) / LEDGER)
