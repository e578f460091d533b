"""What a sweep found and did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file that is not needed.

    ``removable`` = a sweep may remove it now; ``removed`` = it is gone, which a dry run leaves to be done.
    """

    path: str
    bytes: int
    recovery: str
    epoch: int
    why: str
    removable: bool
    removed: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "bytes": self.bytes,
            "recovery": self.recovery,
            "epoch": self.epoch,
            "why": self.why,
            "removable": self.removable,
            "removed": self.removed,
        }


@dataclass(frozen=True, slots=True)
class Left:
    """Something a sweep came across and did not touch, because it is not provably a leftover of ours."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """A sweep as a whole."""

    leftovers: tuple[Leftover, ...] = ()
    left: tuple[Left, ...] = ()

    @property
    def removed(self) -> int:
        """Bytes that are gone."""
        return sum(leftover.bytes for leftover in self.leftovers if leftover.removed)

    @property
    def bytes(self) -> int:
        """Bytes of all leftovers that may go."""
        return sum(leftover.bytes for leftover in self.leftovers if leftover.removable)


def join(reports: Iterable[Report]) -> Report:
    """Several sweeps as one."""
    all_of_them = tuple(reports)
    return Report(
        tuple(leftover for report in all_of_them for leftover in report.leftovers),
        tuple(left for report in all_of_them for left in report.left),
    )
