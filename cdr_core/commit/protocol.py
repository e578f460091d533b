"""Publishing once: intent → look up → publish → record.

The intent with its proof is durable before the target is touched. Whether a publication happened is only ever decided
by looking into the target. Publishing is a compare-and-swap on the very base that the look-up saw, so a process that
was paused in between cannot publish again after its successor did.
"""

from __future__ import annotations

from typing import Protocol

from cdr_core.commit.sinks.base import Publication, Published, Sink
from cdr_core.errors import CommitConflict, CommitUnknown
from cdr_core.faults import reach

MAXIMUM_CONFLICTS = 100
"""Other users of a busy target may win this often before we give the attempt up; a retry goes on."""


class CommitLog(Protocol):
    """The durable side: rows of the metadata database, every one written in a fenced transaction."""

    def intend(self, base: int) -> None:
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
        log.intend(seen.base)
        reach("commit.intent")
        published = earlier = seen.find(commit_id)
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


def _try_publish(sink: Sink, base: int, commit_user: str, commit_id: int, publication: Publication) -> Published | None:
    """``None`` when somebody else published on the base first. An unknown outcome is looked up, never repeated
    blindly.
    """
    try:
        return sink.publish(base, publication)
    except CommitConflict:
        return None
    except CommitUnknown:
        found = sink.look_up(commit_user).find(commit_id)
        if found is None:
            raise
        return found
