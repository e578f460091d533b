"""Tiers: directories with a capacity, in the order in which they are filled.

A memory tier is a tmpfs directory listed first; disks follow. Without any, spilled data lies in the workspace, without
a limit. An attempt writes below ``TIER/RECOVERY/eEPOCH`` and nowhere else, so that what is found there can be told to
be ours, and whose.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cdr_core.errors import SettingsRefused
from cdr_core.settings import SpillDir
from cdr_core.storage import is_local
from cdr_core.storage.local import is_writable, local_path

SETTING = "CDR_SPILL_DIRS"
MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
SET_BUFFERS = 8
"""Segments' worth of memory that writing a set takes at most: the body, the window under it, the records' places."""


@dataclass(frozen=True, slots=True)
class Tier:
    """A directory and how many bytes all recoveries together may have in it; ``None`` = as many as fit."""

    path: str
    capacity: int | None

    def attempt(self, recovery: str, epoch: int, *parts: str) -> Path:
        """A place of one attempt; no two attempts share a path."""
        return Path(self.path, recovery, f"e{epoch}", *parts)


def tiers_of(spill_dirs: Iterable[SpillDir], root: str) -> tuple[Tier, ...]:
    """The configured tiers, or the workspace that holds the recovery's own directory ``root``.

    None where that is no directory: a set is made in a task's scratch directory then, and goes to the workspace.
    """
    if not is_local(root):
        return ()
    configured = tuple(Tier(directory.path, directory.capacity) for directory in spill_dirs)
    return configured or (Tier(str(local_path(root).parent), None),)


def refuse_beside(workspace: str, spill_dirs: Sequence[SpillDir]) -> None:
    """Refuse tiers beside a shared workspace: the task that drains a set may run on another host than the one it lies
    on.
    """
    if spill_dirs:
        raise SettingsRefused(
            f"{SETTING} names directories of one host, and several share the workspace {workspace}",
            hint=f"unset {SETTING}; spilled data lies in the workspace then",
        )


@dataclass(frozen=True, slots=True)
class Space:
    """What a tier's directory is at the moment. ``occupied`` = another thing has its name; ``device`` tells which tiers
    share one file system; ``reserved`` is what other recoveries hold of the tier's capacity.
    """

    exists: bool
    writable: bool = False
    device: int = 0
    total: int = 0
    free: int = 0
    reserved: int = 0
    occupied: bool = False


def look(tier: Tier, reserved: int = 0) -> Space:
    """The facts about a tier's directory."""
    path = Path(tier.path)
    if not path.is_dir():
        return Space(exists=False, occupied=os.path.lexists(path))
    usage = shutil.disk_usage(path)
    return Space(True, is_writable(path), path.stat().st_dev, usage.total, usage.free, reserved)


def check(tiers: Sequence[Tier], spaces: Sequence[Space], expected: int, segment_size: int, setting: str) -> None:
    """The decision, from facts: each tier is usable by itself, and together they have room."""
    for tier, space in zip(tiers, spaces, strict=True):
        _check_one(tier, space, segment_size, setting)
    for number, tier in enumerate(tiers):
        for other in tiers[:number]:
            if _inside(tier, other) or _inside(other, tier):
                raise SettingsRefused(
                    f"spill directories {other.path} and {tier.path} overlap", hint=f"correct {setting}"
                )
    room = room_in(tiers, spaces)
    if room < expected:
        names = ", ".join(tier.path for tier in tiers)
        what = "directory" if len(tiers) == 1 else "directories"
        reserved = sum(space.reserved for space in spaces)
        others = f" besides {reserved} that other recoveries hold" if reserved else ""
        raise SettingsRefused(
            f"spill {what} {names} can take {room} bytes{others}, and up to {expected} will be spilled",
            hint=f"free some space, or set {SETTING} to larger or more directories",
        )


def room_in(tiers: Sequence[Tier], spaces: Sequence[Space]) -> int:
    """Bytes that fit: capacities, but no file system gives more than it has free, however many tiers lie on it."""
    free: dict[int, int] = {space.device: space.free for space in spaces}
    room = 0
    for tier, space in zip(tiers, spaces, strict=True):
        usable = free[space.device]
        if tier.capacity is not None:
            usable = min(max(tier.capacity - space.reserved, 0), usable)
        free[space.device] -= usable
        room += usable
    return room


def _check_one(tier: Tier, space: Space, segment_size: int, setting: str) -> None:
    if space.occupied:
        raise SettingsRefused(f"spill directory {tier.path} is not a directory", hint=f"correct {setting}")
    if not space.exists:
        raise SettingsRefused(
            f"spill directory {tier.path} does not exist", hint=f"create it, or take it out of {setting}"
        )
    if not space.writable:
        raise SettingsRefused(
            f"spill directory {tier.path} cannot be written", hint=f"check its permissions, or correct {setting}"
        )
    if tier.capacity is None:
        return
    if tier.capacity < segment_size:
        raise SettingsRefused(
            f"spill directory {tier.path} has a capacity of {tier.capacity} bytes, less than a segment "
            f"of {segment_size}",
            hint=f"correct {setting}",
        )
    if tier.capacity > space.total:
        raise SettingsRefused(
            f"spill directory {tier.path} has a capacity of {tier.capacity} bytes on a file system of {space.total}",
            hint=f"correct {setting}",
        )


@cache
def is_memory(path: str) -> bool:
    """Whether a directory lies in memory: on a tmpfs, as the mount that holds it says."""
    real, found = os.path.realpath(path), ("", "")
    with suppress(OSError), Path("/proc/self/mounts").open() as mounts:
        for line in mounts:
            _, point, kind = line.split(" ", 3)[:3]
            if len(point) > len(found[0]) and Path(real).is_relative_to(point):
                found = point, kind
    return found[1] in MEMORY_FILE_SYSTEMS


def _inside(inner: Tier, outer: Tier) -> bool:
    """Whether one is the other or below it, also where links lead there: its room would be counted twice."""
    return Path(os.path.realpath(inner.path)).is_relative_to(os.path.realpath(outer.path))
