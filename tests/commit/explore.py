"""Every order in which attempts at a recovery can die, sleep and overtake each other while they publish.

Explored are the shipped coordinator, commit protocol and repository: only the target, the markers and the subtasks are
stand-ins, in memory like the database, so that a state can be copied. An attempt runs from a copied state to its end;
the state after each of its durable steps is where it may be killed, and right before it touches the target it may fall
asleep and wake during its successor. From each such state a new attempt runs, and so on. States that differ only in
the numbers of epochs and checkpoints are the same state.

An attempt that wakes can only act on the target: everything else it does is fenced, which is checked each time. What it
does there commutes with everything but its successor's own looks at and publications to the target, so it wakes right
before one of these, or at the very end; ``everywhere`` lets it wake before every step, and its successor give a
checkpoint up meanwhile.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cdr_core.commit.committable import PreparedFile
from cdr_core.commit.sinks import Publication
from cdr_core.errors import CommitConflict, Fenced
from tests.commit.explore_driver import RECORDS, SUBTASKS, Driver
from tests.commit.explore_world import Act, MemoryDatabase, Root, World, last_complete


class Violation(AssertionError):
    """An invariant does not hold."""


class KnownFromHere(BaseException):
    """Another attempt was in this very state at this very place: what follows is known."""


@dataclass
class Explorer:
    """Runs attempts from every state that can be reached; ``states`` and ``runs`` tell how many there were."""

    database: MemoryDatabase
    recovery: str
    driver: type[Driver] = Driver
    everywhere: bool = False
    skips_known: bool = True
    stops_where_known: bool = True
    runs: int = 0
    steps: int = 0
    deaths: int = 0
    checkpoints: int = 0
    _passed: dict[Any, int] = field(default_factory=dict)
    _allowed: int = 0
    _seen: dict[Any, int] = field(default_factory=dict)
    _waiting: list[Root] = field(default_factory=list)

    @property
    def states(self) -> int:
        return len(self._seen)

    @property
    def reached(self) -> frozenset[Any]:
        """Every state in which an attempt can be killed, with who sleeps in it."""
        return frozenset(self._seen)

    @property
    def size(self) -> str:
        return f"{self.states} states, {self.runs} attempts run, {self.steps} durable steps, all explored"

    def explore(self, kills: int) -> None:
        self._allowed = kills
        world = World(self.database, self.recovery, lambda _: None)
        self._offer(world, self._same(world), None, kills)
        while self._waiting:
            root = self._waiting.pop()
            for gives_up in (False, True) if root.asleep is None or self.everywhere else (False,):
                wakes = self._run(root, gives_up, None)
                if root.asleep is not None:
                    for place in wakes:
                        self._run(root, gives_up, place)

    def _run(self, root: Root, gives_up: bool, wake: int | None) -> list[int]:
        """One attempt to its end, or to where the rest is known. The sleeper wakes before step ``wake``, if it can.

        Returns the steps where it could.
        """
        self.runs += 1
        self.deaths = max(self.deaths, self._allowed - root.kills)
        steps: list[str] = []
        places: Counter[Any] = Counter()

        def step(name: str) -> None:
            about_to, asleep = world.about_to, root.asleep
            if asleep is not None and wake is not None and len(steps) >= wake:
                if len(steps) == wake:
                    self._wake(world, asleep)
                asleep = None
            steps.append(name)
            self.steps += 1
            self._check(world)
            durable = self._same(world)
            if root.kills and name != "look":
                self._may_die(world, durable, about_to, root)
            # A program in the same state at the same place goes on in the same way.
            place = (durable, world.stage, name, driver.gives_up)
            places[place] += 1
            if asleep is None and self.skips_known and self.stops_where_known:
                if self._passed.get((place, places[place]), -1) >= root.kills:
                    raise KnownFromHere
                self._passed[place, places[place]] = root.kills

        world = World(self.database, self.recovery, step)
        world.load(root.durable)
        driver = self.driver(world, gives_up=gives_up)
        with suppress(KnownFromHere):
            driver.run()
            if root.asleep is not None and wake is None:
                self._wake(world, root.asleep)
            self._check(world)
            self._check_end(world)
            complete = "select count(*) from recovery_checkpoint where state in ('COMPLETED', 'EXPIRED')"
            self.checkpoints = max(self.checkpoints, world.database.query(complete)[0][0])
        return [n for n, name in enumerate(steps) if n and (self.everywhere or name in ("look", "publish", "mark"))]

    def _wake(self, world: World, act: Act) -> None:
        """It acts on the target, if the target lets it, and is fenced before it can write a row of it."""
        step, world._step = world._step, lambda _: None
        if act.publication is not None:
            with suppress(CommitConflict):
                self.driver.sink_type(world).put(act.base, act.publication)
        elif act.notice is not None:
            world.markers |= {act.notice.commit_id}
        with suppress(Fenced), world.repository.fenced(world.recovery, act.epoch):
            raise Violation("an attempt that was overtaken can still write rows")
        world._step = step

    def _may_die(self, world: World, durable: Any, about_to: Act | None, root: Root) -> None:
        """Killed here, or asleep where it is about to touch the target."""
        self._offer(world, durable, None, root.kills - 1)
        if about_to is not None:
            self._offer(world, durable, about_to, root.kills - 1)

    def _offer(self, world: World, durable: Any, asleep: Act | None, kills: int) -> None:
        key = (durable, self._same_act(asleep))
        if self._is_new(key, kills):
            self._waiting.append(Root(world.dump(), asleep, kills))

    def _is_new(self, key: Any, kills: int) -> bool:
        """Whether nobody has begun there who could be killed as often."""
        known = self._seen.get(key, -1)
        self._seen[key] = max(kills, known)
        return known < kills or not self.skips_known

    def _same_act(self, act: Act | None) -> Any:
        if act is None:
            return None
        numbers = self.database.query("select checkpoint_id from recovery_checkpoint order by 1")
        number = act.publication.commit_id if act.publication is not None else act.notice and act.notice.commit_id
        return act.base, act.publication is None, numbers.index((number,))

    def _same(self, world: World) -> Any:
        """A state without the numbers of epochs and checkpoints, which are only compared with each other.

        Checkpoints that were given up and have left no output, and who prepared what a complete one holds, are no
        matter.
        """
        return self._ranked(self._facts(), world.target, world.markers)

    def _facts(self) -> Any:
        """Of the database, numbers included."""
        query = self.database.query
        complete = last_complete(self.database)
        epoch = query("select epoch from recovery")[0][0]
        under_way = query("select checkpoint_id from recovery_checkpoint where state = 'TRIGGERED'")
        entries = query(
            "select checkpoint_id, subtask, records, epoch from prepared where records > 0 or checkpoint_id in "
            "(select checkpoint_id from recovery_checkpoint where state != 'ABORTED') order by 1, 2"
        )
        log = query("select commit_id, state from commit_log order by 1")
        listeners = query("select listener_states from coordinator_state")
        return complete, epoch, under_way, entries, log, listeners

    def _ranked(self, facts: Any, target: tuple[Publication, ...], markers: frozenset[int]) -> Any:
        complete, epoch, under_way, entries, log, listeners = facts
        shown = {each.commit_id for each in target}
        numbers = {0, complete, *(each[0] for each in (*under_way, *entries, *log)), *shown, *markers}
        rank = {number: place for place, number in enumerate(sorted(numbers))}
        return (
            rank[complete],
            tuple(rank[number] for (number,) in under_way),
            tuple((rank[n], subtask, records, n <= complete or age == epoch) for n, subtask, records, age in entries),
            tuple((rank[number], state) for number, state in log),
            (len(listeners), tuple(rank.get(number) for number in _numbers(listeners))),
            tuple((rank[each.commit_id], tuple(sorted(map(_record, each.files)))) for each in target),
            tuple(sorted(rank[number] for number in markers)),
        )

    def _check(self, world: World) -> None:
        """What must hold after every step."""
        self._check_target(world)
        self._check_rows(world)

    def _check_target(self, world: World) -> None:
        ids = [each.commit_id for each in world.target]
        if ids != sorted(set(ids)):
            raise Violation(f"I3, I4: commits {ids} are not once and ascending")
        twice = [record for record, times in self._published(world).items() if times > 1]
        if twice:
            raise Violation(f"records {twice} are published twice")
        said = [int(each.properties.get("cdr.watermark", -1)) for each in world.target]
        if said != sorted(said):
            raise Violation(f"I7: watermarks {said} fall")
        if not world.markers <= set(ids):
            raise Violation("a listener was told of a commit that is not there")

    def _check_rows(self, world: World) -> None:
        """What the target shows is what the rows allow."""
        ids = [each.commit_id for each in world.target]
        complete = last_complete(world.database)
        if ids and ids[-1] > complete:
            raise Violation(f"I1: commit {ids[-1]} before checkpoint {complete} is complete")
        entries = {file for (row,) in world.database.query("select manifest from prepared") for file in _files(row)}
        if any(file.path not in entries for each in world.target for file in each.files):
            raise Violation("I6: output of an attempt whose checkpoint did not complete is published")

    def _check_end(self, world: World) -> None:
        everything = {f"{subtask}.{number}" for subtask in SUBTASKS for number in range(RECORDS)}
        if set(self._published(world)) != everything:
            raise Violation(f"I2, I5, I9: only {sorted(self._published(world))} are published")
        ids = {each.commit_id for each in world.target}
        if world.markers != ids:
            raise Violation(f"E51: listeners were told of {sorted(world.markers)}, not of {sorted(ids)}")
        log = world.repository.commit_log(self.recovery)
        if {row.commit_id for row in log if str(row.state) == "PUBLISHED"} != ids:
            raise Violation("the log does not say what the target shows")

    def _published(self, world: World) -> Counter[str]:
        return Counter(_record(file) for each in world.target for file in each.files)


def _record(file: PreparedFile) -> str:
    return file.path.rpartition(".")[0]


def _files(manifest: str) -> Iterator[str]:

    return (file["path"] for file in json.loads(manifest)["files"])


def _numbers(listeners: list[tuple[Any, ...]]) -> list[int]:

    return [state["up_to"] for (states,) in listeners for state in json.loads(states).values()]
