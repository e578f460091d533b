"""What a drill was begun with, and what its checks found, as its rows store them."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Expect(StrEnum):
    """What a query on the recovered rows must answer."""

    NO_ROWS = "no rows"
    TRUE = "true"


class Query(msgspec.Struct, frozen=True):
    """A check in SQL on the view ``recovered``; ``TRUE`` = one row with one column that is true."""

    name: str
    text: str = msgspec.field(name="query")
    expect: Expect = Expect.NO_ROWS


class DrillChecks(msgspec.Struct, frozen=True, kw_only=True):
    """The checks of recovered rows that a plan asks for, a field a kind: a flag, or the queries of ``sql``.

    ``drill/checks.py`` has the function of each kind, ``drill/verdict.py`` what its failure means.
    """

    rows: bool = True
    verify: bool = False
    sql: tuple[Query, ...] = ()
    flink_restore: bool = False

    @property
    def wanted(self) -> tuple[str, ...]:
        """The kinds that are asked for."""
        return tuple(name for name in self.__struct_fields__ if getattr(self, name))

    @property
    def need_rows(self) -> bool:
        """Whether any check reads recovered rows; where none does, none need be kept."""
        return self.rows or self.verify or bool(self.sql)


class DrillProcess(msgspec.Struct, frozen=True):
    """The process that runs a drill; ``started`` tells it from a later one with the same number."""

    pid: int
    started: str | None = None


class DrillArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that later steps of a drill need, so that they depend neither on the plans' file nor on its changes.

    ``modified``: when the checkpoint was written, in ISO; ``None`` = no checkpoint was chosen. ``run`` names the run of
    the drill. ``host`` and ``process`` tell the sweep whether it still lives.
    """

    version: int = 1
    job: str | None = None
    plan: str | None = None
    parallelism: str = ""
    rto_limit_s: float | None = None
    rpo_limit_s: float | None = None
    stale_after_s: float | None = None
    give_up_s: float | None = None
    choice: str = ""
    schedule: str = ""
    seed: int | None = None
    modified: str | None = None
    spec: str = ""
    target: str = "none:"
    scratch: str = ""
    host: str | None = None
    cores: int | None = None
    run: str = ""
    process: DrillProcess | None = None
    checks: DrillChecks = DrillChecks()


class DrillCheck(msgspec.Struct, frozen=True):
    """What a check found; ``means`` and ``do`` are empty where it passed."""

    name: str
    result: str
    sentence: str
    means: str = ""
    do: str = ""
