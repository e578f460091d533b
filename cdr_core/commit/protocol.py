"""Publishing once: look up → intent → publish → record.

The intent with its proof is durable before the target is touched. Whether a publication happened is only ever decided
by looking into the target. Publishing is a compare-and-swap on the very base that the look-up saw, so a process that
was paused in between cannot publish again after its successor did.
"""

from __future__ import annotations

from typing import Protocol

from cdr_core.commit.sinks.base import LookUp, Publication, Published, Sink
from cdr_core.errors import CdrError, CommitConflict, CommitUnknown, InDoubt
from cdr_core.faults import reach

MAXIMUM_CONFLICTS = 100
"""Other users of a busy target may win this often before we give the attempt up; a retry goes on."""


class CommitLog(Protocol):
    """The durable side: rows of the metadata database, every one written in a fenced transaction."""

    def intended_on(self) -> str | None:
        """The base of the last intent; ``None``: nobody ever tried, so nothing can have been published.

        The last one is enough. Whoever records another base has seen everything after the one before, and what is
        still on its way to the older base can only come before anything that succeeds the newer one.
        """

    def intend(self, base: str) -> None:
        """Record that a publication on ``base`` may happen from now on."""

    def require_current(self) -> None:
        """Raise ``Fenced`` if a newer attempt owns the recovery."""

    def record(self, published: Published) -> None:
        """Record where the publication is visible."""


def publish_once(
    sink: Sink, commit_user: str, commit_id: int, publication: Publication, log: CommitLog
) -> tuple[Published, bool]:
    """Make the publication visible exactly once. Returns it, and whether it was found instead of made."""
    for _ in range(MAXIMUM_CONFLICTS):
        seen = sink.look_up(commit_user)
        published = earlier = seen.find(commit_id)
        if published is None:
            _require_sight(seen, log.intended_on())
        log.intend(seen.base)
        reach("commit.intent")
        if published is None:
            log.require_current()
            reach("commit.before-publish")
            published = _try_publish(sink, seen.base, commit_user, commit_id, publication)
        if published is not None:
            reach("commit.published")
            log.record(published)
            reach("commit.recorded")
            return published, earlier is not None
    raise CommitConflict(f"the target changed {MAXIMUM_CONFLICTS} times while publishing", hint="run commit again")


def _try_publish(sink: Sink, base: str, commit_user: str, commit_id: int, publication: Publication) -> Published | None:
    """``None`` when somebody else published on the base first.

    After any other failure the outcome is unknown, whatever the failure says of itself: it is looked up, never
    repeated blindly.
    """
    try:
        return sink.publish(base, publication)
    except CommitConflict:
        return None
    except Exception as error:
        seen = sink.look_up(commit_user)
        found = seen.find(commit_id)
        if found is not None:
            return found
        _require_sight(seen, base)
        if isinstance(error, CdrError):
            raise
        what = f"it is not known whether commit {commit_id} was published ({error or type(error).__name__})"
        raise CommitUnknown(what, hint="run commit again: it looks into the target first") from error


def _require_sight(seen: LookUp, intended: str | None) -> None:
    """A commit that is not found may have been forgotten: then nobody but a person can tell."""
    if intended is not None and not seen.covers(intended):
        raise InDoubt(
            f"a publication on {intended} was begun, and what the target shows does not go back that far",
            hint="its snapshots have expired or were rolled back: compare the target with the receipt's counts by hand",
        )
