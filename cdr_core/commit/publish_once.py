"""Publishing once: look up → intent → publish → record.

The intent with its proof is durable before the target is touched; it comes after the look-up because it names the base
that was seen, which is how far back a later look-up has to see. Whether a publication happened is only ever decided by
looking into the target. Publishing is a compare-and-swap on the very base that the look-up saw, so a process that was
paused in between cannot publish again after its successor did. The epoch is asked for last, when everything that takes
time is done.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Protocol

from cdr_core.commit.sinks.base import PROOF, SOURCE, LookUp, Publication, Published, Sink
from cdr_core.errors import CdrError, CommitConflict, CommitUnknown, InDoubt, Refused
from cdr_core.faults import reach
from cdr_core.log import with_fields

logger = logging.getLogger(__name__)

MAXIMUM_CONFLICTS = 100
"""Other users of a busy target may win this often before we give the attempt up; a retry goes on."""


class CommitLog(Protocol):
    """The durable side: rows of the metadata database, every one written in a fenced transaction."""

    def intended_on(self) -> str | None:
        """The base of the last intent; ``None``: no attempt was made, so nothing can have been published.

        The last one is enough. An attempt that records another base has seen everything after the one before, and what
        is still on its way to the older base can only come before anything that succeeds the newer one.
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
    """Make the publication visible exactly once. Returns it, and whether it was found instead of made.

    One that is found has the proof of this one, or it is something else under the same number; and nothing is published
    where another recovery has published the same source.
    """

    def permit() -> None:
        log.require_current()
        reach("commit.before-publish")

    publication = replace(publication, permit=permit)
    for _ in range(MAXIMUM_CONFLICTS):
        seen = sink.look_up(commit_user)
        logger.debug("looked up", extra=with_fields(commit=commit_id, base=seen.base, published=len(seen.published)))
        published = earlier = _find(seen, commit_id, publication)
        if published is None:
            _refuse_second_recovery(seen, publication)
            require_sight(seen, log.intended_on())
        log.intend(seen.base)
        reach("commit.intent")
        if published is None:
            published = _try_publish(sink, seen.base, commit_user, commit_id, publication)
        if published is not None:
            reach("commit.published")
            log.record(published)
            reach("commit.recorded")
            fields = with_fields(commit=commit_id, location=published.location, files=len(publication.files))
            logger.info("found published" if earlier else "published", extra=fields)
            return published, earlier is not None
    raise CommitConflict(f"the target changed {MAXIMUM_CONFLICTS} times while publishing", hint="run commit again")


def _try_publish(sink: Sink, base: str, commit_user: str, commit_id: int, publication: Publication) -> Published | None:
    """``None`` when another process published on the base first.

    After any other failure the outcome is unknown, whatever the failure says of itself: it is looked up, never
    repeated blindly.
    """
    try:
        return sink.publish(base, publication)
    except CommitConflict:
        logger.debug("another commit was first", extra=with_fields(commit=commit_id, base=base))
        return None
    except Exception as error:
        logger.warning(
            "a publication failed, the target is looked into: %s", error, extra=with_fields(commit=commit_id)
        )
        seen = sink.look_up(commit_user)
        found = _find(seen, commit_id, publication)
        if found is not None:
            return found
        require_sight(seen, base)
        if isinstance(error, CdrError):
            raise
        what = f"it is not known whether commit {commit_id} was published ({error or type(error).__name__})"
        raise CommitUnknown(what, hint="run commit again: it looks into the target first") from error


def _find(seen: LookUp, commit_id: int, publication: Publication) -> Published | None:
    """The publication, if the target shows it. Another one under its number is not taken for it."""
    found, proof = seen.find(commit_id), publication.properties.get(PROOF)
    if found is not None and None not in (found.proof, proof) and found.proof != proof:
        raise InDoubt(
            f"commit {found.commit_id} is at {found.location} with other records than those to be published",
            hint="the metadata database lost rows after it was published: restore them, or compare the target with"
            " the source by cdr verify and recover to another target",
        )
    return found


def already_published(recovery: str) -> Refused:
    """A target holds the records of this source: a second recovery would put them there once more."""
    return Refused(
        f"recovery {recovery} has published this very checkpoint to this target already",
        hint="its records are there; go on with it where its metadata database is, or name another target",
    )


def _refuse_second_recovery(seen: LookUp, publication: Publication) -> None:
    """Two recoveries of one source to one target are two only because they do not share a metadata database."""
    source = publication.properties.get(SOURCE)
    if source is not None and source in seen.others:
        raise already_published(seen.others[source])


def require_sight(seen: LookUp, intended: str | None) -> None:
    """Raise ``InDoubt`` where the target may have forgotten a publication on this base: only a person can tell then."""
    if intended is not None and not seen.covers(intended):
        raise InDoubt(
            f"a publication on {intended} was begun, and what the target shows does not go back that far",
            hint="its snapshots have expired or were rolled back: cdr verify --source --output --spec tells whether the"
            " records are there; if not, recover to another target",
        )
