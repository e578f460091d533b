"""No order of deaths, sleeps and successors breaks an invariant of the commit protocol; broken variants are found.

Two checkpoints, two attempts alive at a time (one that sleeps and its successor), three deaths. Where there are more of
them, or where a sleeper may wake before every step instead of those where it matters, it takes long.
"""

from __future__ import annotations

from collections.abc import Collection, Container

import pytest

from cdr_core.commit.coordinator import Commit, Coordinator
from cdr_core.commit.events import CheckpointComplete
from cdr_core.errors import CdrError, InDoubt
from cdr_core.metadata import FencedTransaction, Phase, Repository, upgrade
from tests.commit.explore import Explorer, Violation
from tests.commit.explore_driver import AtEnd, Driver, Uneven
from tests.commit.explore_losses import LosingExplorer
from tests.commit.explore_world import MemoryDatabase, Sink
from tests.metadata import steps

KILLS = 3
LOSSES = 1
"""Deaths that may take transactions with them."""


DEEP = (pytest.mark.soak, pytest.mark.timeout(1800))


@pytest.fixture(scope="session")
def draining(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, str]:
    """A database with a recovery whose drain can begin."""
    file = tmp_path_factory.mktemp("explore") / "cdr.db"
    upgrade(f"sqlite:///{file}")
    with Repository.open(f"sqlite:///{file}") as repository:
        recovery = steps.reach(repository, Phase.DRAIN).recovery_id
    return file.read_bytes(), recovery


def explore(draining: tuple[bytes, str], driver: type[Driver], kills: int, *, everywhere: bool = False) -> Explorer:
    explorer = Explorer(MemoryDatabase(draining[0]), draining[1], driver, everywhere)
    explorer.explore(kills)
    return explorer


@pytest.mark.seed(
    "004-05",
    "004-16",
    "004-20",
    "004-24",
    "E29",
    "E37",
    "E40",
    "E41",
    "E42",
    "E43",
    "E44",
    "E45",
    "E46",
    "E47",
    "E48",
    "E51",
)
@pytest.mark.parametrize(
    ("driver", "kills", "everywhere"),
    [
        pytest.param(Driver, KILLS, False, id="Driver-0"),
        pytest.param(Uneven, KILLS - 1, False, id="Uneven-1"),
        pytest.param(Driver, KILLS + 1, False, id="Driver-four", marks=DEEP),
        pytest.param(Uneven, KILLS, False, id="Uneven-three", marks=DEEP),
        pytest.param(Driver, KILLS, True, id="Driver-everywhere", marks=DEEP),
    ],
)
def test_no_order_of_deaths_and_successors_publishes_anything_twice_or_never(
    draining: tuple[bytes, str], driver: type[Driver], kills: int, everywhere: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two attempts alive, three deaths."""
    explorer = explore(draining, driver, kills, everywhere=everywhere)
    with capsys.disabled():
        print(f"\n{driver.__name__}, at most {kills} deaths: {explorer.size}")
    assert explorer.states > 60
    assert explorer.runs > 200
    assert explorer.deaths == kills, "some attempt began after the last death that was allowed"
    assert explorer.checkpoints == 2


@pytest.mark.slow
@pytest.mark.parametrize("everywhere", [False, pytest.param(True, marks=DEEP)])
def test_what_is_left_out_because_it_is_known_leads_nowhere_new(draining: tuple[bytes, str], everywhere: bool) -> None:
    """The same exploration with every attempt run to its end from every state it was met in, known or not."""
    known, every = (
        Explorer(MemoryDatabase(draining[0]), draining[1], everywhere=everywhere, skips_known=skips)
        for skips in (True, False)
    )
    for explorer in (known, every):
        explorer.explore(1)
    assert every.runs > known.runs
    assert every.reached == known.reached


@pytest.mark.seed("E59")
@pytest.mark.parametrize(
    ("driver", "losses"),
    [
        pytest.param(Driver, LOSSES, id="Driver"),
        pytest.param(AtEnd, LOSSES, id="AtEnd"),
        pytest.param(Driver, LOSSES + 1, id="Driver-two", marks=DEEP),
        pytest.param(AtEnd, LOSSES + 1, id="AtEnd-two", marks=DEEP),
    ],
)
def test_no_loss_of_the_databases_last_transactions_publishes_anything_twice(
    draining: tuple[bytes, str], driver: type[Driver], losses: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Any number of transactions lost with each of so many deaths; who cannot know what was committed stops, who can
    goes on.
    """
    explorer = LosingExplorer(MemoryDatabase(draining[0]), draining[1], driver)
    explorer.explore(losses)
    with capsys.disabled():
        print(f"\n{driver.__name__}, {losses} deaths with losses: {explorer.size}, {explorer.doubts} in doubt")
    assert explorer.deaths == losses
    assert explorer.doubts > 0
    assert explorer.healed > 0


class Forgetful(Driver):
    """Does not forget what subtasks prepared after the checkpoint they go back to."""

    def reset(self, transaction: FencedTransaction, subtask: int, checkpoint: int) -> None:
        pass


class Hasty(Driver):
    """Commits before the checkpoint is complete."""

    def complete(self, coordinator: Coordinator, number: int) -> None:
        coordinator.deliver(CheckpointComplete(number))
        super().complete(coordinator, number)


class Blind(Driver):
    """Its target does not tell what it holds."""

    class sink_type(Sink):
        remembers = False


class Careless(Driver):
    """Its target takes a publication on any base."""

    class sink_type(Sink):
        compares = False


class Backwards(Driver):
    """Commits the newest first."""

    class coordinator_type(Coordinator):
        def _commits(self, checkpoint: int) -> list[Commit]:
            return super()._commits(checkpoint)[::-1]


class RollsBack(Driver):
    """Takes an abort for a rollback."""

    class coordinator_type(Coordinator):
        def _commits(self, checkpoint: int) -> list[Commit]:
            return [commit for commit in super()._commits(checkpoint) if commit.commit_id == checkpoint]


@pytest.mark.parametrize(
    ("driver", "what"),
    [
        (Forgetful, "twice"),
        (Hasty, "I1"),
        (Blind, "twice|ascending"),
        (Careless, "twice|ascending"),
        (Backwards, "ascending|only grow"),
        (RollsBack, "only"),
    ],
)
def test_a_broken_variant_is_found(draining: tuple[bytes, str], driver: type[Driver], what: str) -> None:
    with pytest.raises((Violation, CdrError), match=what):
        explore(draining, driver, KILLS)


class Unsuspecting(Coordinator):
    """Takes the database's word for what is committed."""

    def _committed_of(self, known: Container[int], checkpoint: int) -> Collection[int]:
        return [number for number in self._committer.committed() if number <= checkpoint]


class UnsuspectingDriver(Driver):
    coordinator_type = Unsuspecting


class UnsuspectingAtEnd(AtEnd):
    coordinator_type = Unsuspecting


@pytest.mark.seed("E59")
@pytest.mark.parametrize("driver", [UnsuspectingDriver, UnsuspectingAtEnd])
def test_who_believes_a_database_that_lost_rows_is_found(draining: tuple[bytes, str], driver: type[Driver]) -> None:
    explorer = LosingExplorer(MemoryDatabase(draining[0]), draining[1], driver)
    with pytest.raises((Violation, InDoubt), match="twice"):
        explorer.explore(LOSSES)
