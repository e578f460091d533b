"""One error tree: what went wrong, where, what to do next.

Every class knows its exit code and whether running the same thing again can help. The shell turns the first into the
process's exit status, the Airflow operator turns the second into "retry" or "fail now". A message is one sentence
that a person at 3 a.m. can act on.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Where:
    """The place of a fault, from coarse to fine; ``None`` means it does not apply.

    With an exchange and a channel, ``offset`` counts the bytes of the virtual channel: input state, then output state.
    Else it counts those of the file or object that the sentence is about.
    """

    checkpoint: str | None = None
    exchange: str | None = None
    operator: str | None = None
    subtask: int | None = None
    gate: int | None = None
    channel: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        named = ((f.name, getattr(self, f.name)) for f in fields(self))
        place = ", ".join(f"{name} {value}" for name, value in named if value is not None)
        in_channel = None not in (self.exchange, self.channel, self.offset)
        return f"{place} of the channel" if in_channel else place


NOWHERE = Where()


class CdrError(Exception):
    """Base of everything cdr raises on purpose. By itself: failed, and a retry may help."""

    exit_code: ClassVar[int] = 1
    retry_helps: ClassVar[bool] = True
    remedy: ClassVar[tuple[str, ...]] = ()
    """Options of ``cdr recover`` with which the same recovery would get further; empty where none helps."""

    def __init__(self, what: str, *, where: Where = NOWHERE, hint: str = "") -> None:
        super().__init__(what)
        self.what = what.rstrip(".")
        self.where = where
        self.hint = hint.rstrip(".")

    def __str__(self) -> str:
        place = str(self.where)
        sentence = f"{self.what} ({place})" if place else self.what
        if not self.hint:
            return f"{sentence}."
        # A command at the end stands alone: with a full stop behind it, it would not run as it was copied.
        last = self.hint.rpartition(": ")[2]
        is_command = last.startswith("cdr ") and ", " not in last
        return f"{sentence}; {self.hint}{'' if is_command else '.'}"

    def __reduce__(self) -> tuple[object, ...]:
        """Keyword arguments do not survive the default pickling, and errors cross from executors to the driver."""
        return (_rebuild, (type(self), self.what, self.where, self.hint))


def _rebuild(kind: type[CdrError], what: str, where: Where, hint: str) -> CdrError:
    return kind(what, where=where, hint=hint)


# --- failed, a retry may help -------------------------------------------------------------------------------------


class StorageError(CdrError):
    """A file or object could not be read or written, and it is not known to be wrong."""


class DiskFull(StorageError):
    """No room left; what was being written has been removed."""


class SpillLost(StorageError):
    """Spilled bytes are missing or damaged. The spill is a cache: redoing read → spill of that subtask brings them
    back.
    """


class DatabaseUnavailable(CdrError):
    """The metadata database did not answer; without it nothing can be fenced, so nothing is published."""


class JobFailed(CdrError):
    """Spark lost a task more often than it retries."""


class CheckpointsFailed(CdrError):
    """More recovery checkpoints failed in a row than are tolerated."""


class IllegalState(CdrError):
    """Steps were taken in an order that must not be: a fault of cdr itself, found before it could do harm."""


class NotReady(CdrError):
    """Asked too early: the same request succeeds later and is not counted as a failure."""


class CommitConflict(CdrError):
    """Another process published on the same base; nothing of ours became visible."""


class CommitUnknown(CdrError):
    """It is not known whether a publication happened; only a look-up may decide, files must stay."""


# --- verified and different ---------------------------------------------------------------------------------------


class Unbalanced(CdrError):
    """A ledger does not add up: records are missing, doubled, changed or out of order."""

    exit_code = 2
    retry_helps = False


# --- refused ------------------------------------------------------------------------------------------------------


class Refused(CdrError):
    """A precondition does not hold; trying again without changing something is pointless."""

    exit_code = 3
    retry_helps = False


class NotFound(Refused):
    """Nothing has the name that was given."""


class SettingsRefused(Refused):
    """A setting is malformed or contradicts another."""


class SpecRefused(Refused):
    """The job spec is malformed or does not fit the checkpoint."""


class UnprovenKey(SpecRefused):
    """Nothing in the checkpoint confirms the key by which records would be distributed."""

    remedy: ClassVar[tuple[str, ...]] = ("--trust-key",)


class StartOver(Refused):
    """A recovery of the same checkpoint and target is there and cannot be continued as asked."""

    remedy: ClassVar[tuple[str, ...]] = ("--replace",)


def other_version(what: str, found: object, reads: object) -> StartOver:
    """The refusal of something that another version stored and this one cannot read, with the ways out."""
    return StartOver(
        f"{what} has version {found}, this cdr reads {reads}",
        hint="finish the recovery with the cdr that began it, or start over with --replace",
    )


class SourceChanged(Refused):
    """An object of the source is gone, or is not what `read` read any more. That says nothing of the checkpoint as it
    was, so a drill does not blame it and nothing is put aside.
    """


class PlanRefused(Refused):
    """The checkpoint cannot be moved as asked."""


class DrillPlanRefused(Refused):
    """A plan of restore drills is malformed."""


class PhaseRefused(Refused):
    """A phase was asked for before its predecessor's result exists."""


class InDoubt(Refused):
    """The look-up can no longer tell whether a publication happened; a person must decide."""


class Cancelled(Refused):
    """The recovery was cancelled by its user."""

    remedy: ClassVar[tuple[str, ...]] = ("--replace",)


class Replaced(Refused):
    """The recovery was replaced by a newer generation, which goes on in its place."""


class GivenUp(Cancelled):
    """A drill took far longer than its plan allows."""

    remedy: ClassVar[tuple[str, ...]] = ()


# --- fenced -------------------------------------------------------------------------------------------------------


class Fenced(CdrError):
    """A newer attempt owns the recovery; this one must stop and touch nothing shared."""

    exit_code = 4
    retry_helps = False


# --- corrupt input ------------------------------------------------------------------------------------------------


class Corrupt(CdrError):
    """Input bytes are unreadable or contradict themselves."""

    exit_code = 5
    retry_helps = False


class Unreadable(Corrupt):
    """The input is not there, or not something cdr can read."""


class CorruptMetadata(Corrupt):
    """A checkpoint's ``_metadata`` does not parse."""


class CorruptChannelState(Corrupt):
    """Channel-state bytes do not frame into records."""

    remedy: ClassVar[tuple[str, ...]] = ("--on-corrupt=quarantine", "--replace")


# --- published, but partial ---------------------------------------------------------------------------------------


class Partial(CdrError):
    """The result is published without what was quarantined; the receipt lists it."""

    exit_code = 6
    retry_helps = False


USAGE_EXIT_CODE = 64
"""Exit status for a command line that cannot be understood."""


def from_exit_code(code: int, what: str) -> CdrError:
    """The error a child process meant by its exit status; unknown codes (a killed process) may be retried."""
    kinds: dict[int, type[CdrError]] = {2: Unbalanced, 3: Refused, 4: Fenced, 5: Corrupt, 6: Partial}
    return kinds.get(code, CdrError)(what)
