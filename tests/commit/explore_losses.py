"""Deaths that take the database's last transactions with them, as a failover to a replica that was behind does.

The target keeps what it has. Any number of the transactions may be lost that the attempt made before it died. Nobody
sleeps then: a sleeper may have the very epoch of its successor. Whoever finds out stops as in doubt, which ends a line
of attempts and violates nothing; whoever goes on must still publish everything once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from cdr_core.errors import InDoubt
from tests.commit.explore import Explorer
from tests.commit.explore_world import Act, Root, World


@dataclass
class LosingExplorer(Explorer):
    """``doubts`` = how many attempts stopped, ``healed`` = how many went on after a loss and finished."""

    stops_where_known: bool = False
    """What can be lost depends on how an attempt came to where it is."""
    doubts: int = 0
    healed: int = 0
    _lost: bool = False
    _before: list[tuple[bytes, Any]] = field(default_factory=list)

    def _run(self, root: Root, gives_up: bool, wake: int | None) -> list[int]:
        self._lost, self._before = root.lost, []
        self.database.load(root.durable.database)
        self._before.append((root.durable.database, self._facts()))
        try:
            steps = super()._run(root, gives_up, wake)
            self.healed += root.lost
        except InDoubt:
            if not root.lost:
                raise
            self.doubts += 1
            return []
        return steps

    def _may_die(self, world: World, durable: Any, about_to: Act | None, root: Root) -> None:
        super()._may_die(world, (durable, root.lost), None, root)
        facts, now = self._facts(), world.dump()
        for database, before in self._before:
            key = (self._ranked(before, world.target, world.markers), True)
            if before != facts and self._is_new(key, root.kills - 1):
                self._waiting.append(Root(replace(now, database=database), None, root.kills - 1, lost=True))
        if self._before[-1][1] != facts:
            self._before.append((now.database, facts))

    def _offer(self, world: World, durable: Any, asleep: Act | None, kills: int) -> None:
        if self._is_new(durable, kills):
            self._waiting.append(Root(world.dump(), asleep, kills, lost=self._lost))

    def _check_rows(self, world: World) -> None:
        if not self._lost:
            super()._check_rows(world)
