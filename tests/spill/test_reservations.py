"""A tier's capacity is shared by every process and never exceeded; a dead attempt holds nothing it did not write."""

from __future__ import annotations

import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from cdr_core.errors import Fenced
from cdr_core.spill.reservations import LEDGER, Reservations, settle
from cdr_core.spill.tiers import Tier

MINE, OTHER = "r-0000000001", "r-0000000002"


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    return Tier(str(tmp_path), 1000)


def grab(tier: Tier, recovery: str, rounds: int) -> int:
    """Takes 7 bytes again and again; how many times it got them."""
    share = Reservations(tier, recovery, 1)
    return sum(share.take(7) for _ in range(rounds))


def test_processes_and_threads_together_never_get_more_than_the_capacity(tier: Tier) -> None:
    """A lost update between two processes would let more than 1000 / 7 reservations through."""
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(4, mp_context=context) as processes, ThreadPoolExecutor(4) as threads:
        work = [processes.submit(grab, tier, (MINE, OTHER)[n % 2], 60) for n in range(4)]
        work += [threads.submit(grab, tier, MINE, 60) for _ in range(4)]
        assert sum(each.result() for each in work) == 1000 // 7


def test_what_is_given_back_can_be_taken_again(tier: Tier) -> None:
    share = Reservations(tier, MINE, 1)
    assert share.take(1000)
    assert not Reservations(tier, OTHER, 1).take(1)
    share.give_back(400)
    assert Reservations(tier, OTHER, 1).take(400)
    assert not share.take(1)


def test_giving_back_more_than_is_held_makes_no_room(tier: Tier) -> None:
    share = Reservations(tier, MINE, 1)
    assert share.take(600)
    share.give_back(700)
    assert share.take(1000)
    assert not share.take(1)


def test_a_dead_attempts_reservations_are_void_but_its_files_count(tier: Tier) -> None:
    assert Reservations(tier, MINE, 1).take(900)
    left = Path(tier.path) / MINE / "e1" / "spill" / "set-a"
    left.mkdir(parents=True)
    (left / "spill-00000").write_bytes(b"x" * 300)
    later = Reservations(tier, MINE, 2)
    assert later.take(700)
    assert not later.take(1)


@pytest.mark.seed("E17")
def test_an_older_attempt_is_turned_away_once_a_newer_one_is_at_work(tier: Tier) -> None:
    """A zombie gets no room in a tier that its successor uses."""
    zombie = Reservations(tier, MINE, 1)
    assert zombie.take(10)
    Reservations(tier, MINE, 2).take(10)
    with pytest.raises(Fenced, match="a newer attempt"):
        zombie.take(10)
    assert Reservations(tier, OTHER, 1).take(10), "another recovery has epochs of its own"
    Reservations(tier, MINE, 2).give_back(10)
    with pytest.raises(Fenced, match="a newer attempt"):
        zombie.take(10)


@pytest.mark.parametrize("damage", ["lost", "cut", "another version"])
def test_a_ledger_that_is_lost_or_damaged_is_made_again_from_the_files(tier: Tier, damage: str) -> None:
    assert Reservations(tier, MINE, 1).take(600)
    left = Path(tier.path) / MINE / "e1"
    left.mkdir(parents=True)
    (left / "spill-00000").write_bytes(b"x" * 600)
    ledger = Path(tier.path) / LEDGER
    if damage == "lost":
        ledger.unlink()
    else:
        ledger.write_text("{" if damage == "cut" else '{"version": 9, "held": []}')
    assert not Reservations(tier, OTHER, 1).take(401)
    assert Reservations(tier, OTHER, 1).take(400)


def test_a_process_killed_while_it_holds_the_lock_stops_nobody(tier: Tier) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        from cdr_core.spill import reservations

        with reservations._ledger(tier):
            os.write(writer, b"held")
            signal.pause()
        os._exit(0)
    assert os.read(reader, 4) == b"held"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert Reservations(tier, MINE, 1).take(1000)


def test_the_end_of_a_recovery_gives_back_what_is_no_longer_there(tier: Tier) -> None:
    assert Reservations(tier, MINE, 3).take(1000)
    settle(tier, MINE, keep=3)
    assert not Reservations(tier, OTHER, 1).take(1), "an attempt that may be writing keeps its reservations"
    settle(tier, MINE, keep=None)
    assert Reservations(tier, OTHER, 1).take(1000)
