"""The parts of one pass by themselves: queue, disk, and the delivery that routes between them."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdr_core.errors import Closed, IllegalState
from cdr_core.flink.read_page import ReadPage
from cdr_core.metadata import Phase
from cdr_core.phases.driver import Drive
from cdr_core.phases.main import own_runner
from cdr_core.phases.onepass.delivery import Delivery
from cdr_core.phases.onepass.disk import DiskQueue
from cdr_core.phases.onepass.parcels import Parcel, ParcelQueue
from cdr_core.phases.read import prepare
from cdr_core.rescale.plan import Plan
from cdr_core.spill.placement import Place
from cdr_core.spill.router import Route
from cdr_core.spill.tiers import Tier
from cdr_core.spill.writer import SpillWriter
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.onepass import request, spilled_files

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def plan(fixture_checkpoint: FixtureCheckpoints, tmp_path: Path) -> Plan:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    repository, recovery, settings = inline.start(
        request(str(checkpoint.path), str(checkpoint.spec), "2", tmp_path / "out")
    )
    attempt = repository.begin_attempt(recovery, Phase.READ, own_runner("read"))
    assert attempt is not None
    drive = Drive(repository, repository.recovery(recovery), Phase.READ, attempt.epoch, settings)
    prepare(drive)
    return drive.plan


def parcel(place: int, size: int = 40) -> Parcel:
    body = np.full(size, place % 251, np.uint8)
    body[:4] = np.frombuffer((size - 4).to_bytes(4, "big"), np.uint8)
    body[4] = 1
    return Parcel(place % 3, body, np.array([place], np.int64))


def take_all(queue: ParcelQueue) -> list[int]:
    """Positions, in the order in which the consumer meets them."""
    found: list[int] = []
    while (slip := queue.take()) is not None:
        found += [] if slip.positions is None else slip.positions.tolist()
        slip.page.recycle()
    return found


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_consumer_does_parcels_arrive_in_order(plan: Plan, tmp_path: Path, seed: int) -> None:
    """000-05, 000-06, 000-07, 000-19: random sizes and random consuming between, over memory, disk and replay."""
    random = np.random.default_rng(seed)
    queue = ParcelQueue(3, 64)
    found: list[int] = []
    with ExitStack() as stack:
        disk = DiskQueue(plan, 0, lambda: stack.enter_context(SpillWriter(tmp_path / f"set-{seed}", 0, 256, 1024)))
        delivery = Delivery(queue, disk, ReadPage(64))
        for place in range(400):
            delivery.put(parcel(place, int(random.integers(10, 150))))
            taking = random.integers(0, 4) if place % 100 > 50 else 0
            for _ in range(taking):
                if queue.has_room(3 * 64):
                    break
                slip = queue.take()
                assert slip is not None
                found += [] if slip.positions is None else slip.positions.tolist()
                slip.page.recycle()
        consumer = threading.Thread(target=lambda: found.extend(take_all(queue)))
        consumer.start()
        delivery.drain()
        queue.end()
        consumer.join()
        disk.discard()
    assert found == list(range(400))
    assert all(delivery.bytes[way] > 0 for way in Route)
    assert not (tmp_path / f"set-{seed}").exists()


def test_a_tier_that_fills_up_passes_its_file_on_and_the_replay_finds_it(plan: Plan, tmp_path: Path) -> None:
    """000-07, 000-12: files are cut between segments and carried whole; the head is read where it lies now."""
    tiers = [Tier(str(tmp_path / name), capacity) for name, capacity in (("small", 700), ("large", None))]
    for tier in tiers:
        Path(tier.path).mkdir()
    places = [Place.of_attempt(tier, "r-1", 1, "set") for tier in tiers]
    found: list[int] = []
    lain_in: set[str] = set()
    with SpillWriter(tmp_path / "set", 0, 256, 2048, places) as writer:
        disk = DiskQueue(plan, 0, lambda: writer)
        for place in range(200):
            disk.append(parcel(place))
            if place % 5 == 4:
                found += disk.take().positions.tolist()
                lain_in.add(Path(writer.path_of(disk.files - 1)).parents[4].name)
        assert disk.files >= 3
        assert lain_in == {"small", "large"}
        while disk.waiting:
            found += disk.take().positions.tolist()
        disk.discard()
    assert found == list(range(200))
    assert spilled_files(tmp_path / "small") + spilled_files(tmp_path / "large") == []


def test_what_waits_on_disk_is_not_thrown_away(plan: Plan, tmp_path: Path) -> None:
    """000-11: files go only when everything in them was delivered."""
    with SpillWriter(tmp_path / "set", 0, 256, 1024) as writer:
        disk = DiskQueue(plan, 0, lambda: writer)
        disk.append(parcel(0))
        with pytest.raises(AssertionError, match="not thrown away"):
            disk.discard()
        assert disk.take().positions.tolist() == [0]
        disk.discard()


def test_nobody_waits_for_the_consumer_with_the_read_page_in_hand() -> None:
    """000-08, 000-18: the check is loud, in the drain and where there is no disk."""
    page, queue = ReadPage(64), ParcelQueue(1, 64)
    delivery = Delivery(queue, None, page)
    page.take()
    with pytest.raises(IllegalState, match="read page is held"):
        delivery.put(parcel(0))
    with pytest.raises(IllegalState, match="read page is held"):
        delivery.drain()
    page.give_back(0)
    delivery.put(parcel(0))
    delivery.drain()


def test_both_ends_of_the_queue_learn_of_the_others_failure() -> None:
    """002-08: a reader that waits raises the consumer's own error; a consumer is told that the reader gave up."""
    queue = ParcelQueue(1, 64)
    queue.hand_over(parcel(0))
    waiting: list[Any] = []

    def wait() -> None:
        try:
            queue.hand_over(parcel(1))
        except BaseException as error:
            waiting.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    assert thread.is_alive(), "there is no room, so it waits"
    failure = OSError("the target is gone")
    queue.fail(failure)
    thread.join(10)
    assert waiting == [failure]
    with pytest.raises(OSError, match="the target is gone"):
        queue.offer(parcel(2))
    other = ParcelQueue(1, 64)
    other.hand_over(parcel(0))
    other.abandon()
    with pytest.raises(Closed):
        other.take()
