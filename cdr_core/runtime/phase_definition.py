"""A phase as a value: its units, what an executor does with one, and what must balance at the end.

Each module of :mod:`cdr_core.phases` has one as ``PHASE``; :func:`definition_of` finds it by name.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from cdr_core.metadata import Phase
from cdr_core.runtime.unit_results import PhaseResult
from cdr_core.storage.column_codec import Columns

if TYPE_CHECKING:
    from cdr_core.metadata import Command, FencedTransaction
    from cdr_core.planning.plan import Plan
    from cdr_core.runtime.driver import PhaseRun
    from cdr_core.runtime.unit_runner import Job

UnitT = TypeVar("UnitT")
ResultT = TypeVar("ResultT", bound=PhaseResult)
ResultIn = TypeVar("ResultIn", bound=PhaseResult, contravariant=True)


@dataclass(frozen=True, slots=True)
class Outcome(Generic[ResultT]):
    """What a unit did; ``result`` goes to the database and stays small, ``columns`` stay in the workspace."""

    records: int
    bytes: int
    result: ResultT
    columns: Columns = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finished:
    """What a phase ends with: its result, and what is recorded in the very transaction that makes the phase DONE.

    ``clean_up`` comes afterwards; what goes wrong in it changes nothing, a sweep does it again.
    """

    result: Mapping[str, Any]
    record: Callable[[FencedTransaction], None]
    clean_up: Callable[[], object] = lambda: None


class Watch(Protocol[ResultIn]):
    """What a phase does in its driver while its units run, besides recording them. It is entered before they begin, and
    left when all of them are recorded or something was raised.
    """

    def __enter__(self) -> Watch[ResultIn]: ...

    def __exit__(self, *raised: Any) -> None: ...

    def accept(self, unit: str, result: ResultIn) -> None:
        """A finished unit is about to be recorded; raise to refuse it."""

    def end_round(self, poll: Callable[[], None]) -> None:
        """All tasks of a round before the last have ended. ``poll`` is the driver's, to be called while waiting."""

    def settle(self, poll: Callable[[], None]) -> None:
        """All units are recorded; wait for what must happen before the phase can end."""

    def poll(self) -> None:
        """One round, after the finished units were recorded."""

    def command(self, command: Command) -> None:
        """A command that a user asked for; the phase that takes it answers it."""


@dataclass(frozen=True, slots=True)
class PhaseDefinition(Generic[UnitT, ResultT]):
    """The functions of a phase. ``prepare`` and ``finish`` run in the driver. ``execute`` runs a unit on an executor:
    it reads and writes files and never talks to the database. ``unit`` is the type of units, for their codec.

    ``execute`` returns ``None`` for a unit that goes on in a later round. ``rounds``: jobs that come before the one
    that does all units. ``checks_anew``: every attempt does all units, also those that an earlier one finished.
    """

    result: type[ResultT]
    unit: Any
    prepare: Callable[[PhaseRun], Mapping[str, UnitT]]
    execute: Callable[[Job, Plan, UnitT, str], Outcome[ResultT] | None]
    finish: Callable[[PhaseRun, Sequence[ResultT]], Finished]
    watch: Callable[[PhaseRun, Job, Mapping[str, UnitT]], Watch[ResultT]] | None = None
    rounds: Callable[[Job], Sequence[Job]] = lambda _: ()
    checks_anew: bool = False


def definition_of(phase: Phase) -> PhaseDefinition[Any, Any]:
    """The phase's definition; its module is loaded when it is first asked for."""
    definition = importlib.import_module(f"cdr_core.phases.{phase}").PHASE
    assert isinstance(definition, PhaseDefinition), phase
    return definition
