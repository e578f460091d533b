"""What the committer believes: its log where there is one, and the target where it shows more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cdr_core.commit.commit_store import DatabaseStore, Rows, TableCommitter
from cdr_core.commit.coordinator import Commit
from cdr_core.commit.sinks import LookUp, Published
from cdr_core.errors import Refused
from cdr_core.metadata import CommitState, CoordinatorState
from tests.commit.coordination import entry


class Sink:
    """Shows some commits, and takes none."""

    def __init__(self, *shown: int) -> None:
        self._shown = shown

    def look_up(self, _user: str) -> LookUp:
        return LookUp("base", tuple(Published(number, "somewhere") for number in self._shown), frozenset({"base"}))

    def publish(self, *_: object) -> Published:
        raise AssertionError("nothing is to be published")


def committer(sink: Sink, log: dict[int, CommitState]) -> TableCommitter:
    entries = [SimpleNamespace(commit_id=number, state=state) for number, state in log.items()]
    repository = SimpleNamespace(commit_log=lambda _: entries)
    given: Any = repository, SimpleNamespace(id="r"), sink
    return TableCommitter(Rows(given[0], given[1], 1), given[2], lambda _: {})


@pytest.mark.seed("E49", "E59")
@pytest.mark.parametrize(
    ("shown", "log", "committed"),
    [
        ((), {}, set()),
        ((2, 3), {}, {2, 3}),
        ((), {4: CommitState.PUBLISHED}, {4}),
        ((3,), {4: CommitState.INTENT}, {3}),
        ((5,), {4: CommitState.DONE}, {4, 5}),
    ],
    ids=["nothing", "rows lost", "history forgotten", "only intended", "both"],
)
def test_committed_is_what_is_recorded_or_visible(
    shown: tuple[int, ...], log: dict[int, CommitState], committed: set[int]
) -> None:
    """A lost row and a forgotten snapshot do not make a commit unhappen."""
    assert committer(Sink(*shown), log).committed() == committed


@pytest.mark.seed("E49")
def test_what_is_recorded_is_not_looked_for_again() -> None:
    """Its snapshot may have expired since, which leaves nothing in doubt."""
    done = committer(Sink(), {1: CommitState.PUBLISHED})
    assert done.commit(Commit(1, (entry(0, 1, "a"),), None, 1))
    assert done.found == {1: True}


def test_a_commit_without_files_is_not_published() -> None:
    """Unless it is the last one, which says that the recovery is complete."""
    assert not committer(Sink(), {}).commit(Commit(1, (entry(0, 1),), None, 1))


@pytest.mark.seed("E60")
@pytest.mark.parametrize(("user", "version", "what"), [("other", 1, "commits as other"), ("cdr-r", 9, "version 9")])
def test_a_state_of_another_user_or_release_is_refused(user: str, version: int, what: str) -> None:
    saved = CoordinatorState(user, {}, version)
    rows: Any = SimpleNamespace(
        repository=SimpleNamespace(coordinator_state=lambda _: saved), recovery=SimpleNamespace(id="r"), user="cdr-r"
    )
    with pytest.raises(Refused, match=what):
        DatabaseStore(rows).load()
