"""The executor's side of a phase: run one unit and leave an exclusive result manifest in the workspace.

Executors never talk to the database. The driver learns of a finished unit from its manifest; of two attempts at the
same unit (a retried or speculative Spark task) the first manifest wins, and what the other wrote is swept later.
"""

from __future__ import annotations

import importlib
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cdr_core.faults import reach
from cdr_core.phases.workspace import Workspace, read_json, write_json
from cdr_core.rescale.plan import Plan
from cdr_core.storage import join, storage_for

if TYPE_CHECKING:
    from cdr_core.metadata import FencedTransaction


@dataclass(frozen=True, slots=True)
class Job:
    """What every unit of a phase needs to know; travels as JSON, because a Spark server's own settings are fixed."""

    phase: str
    recovery: str
    epoch: int
    root: str
    plan: str
    target: str
    segment_size: int
    spill_file_size: int

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        return cls(**json.loads(text))

    @property
    def directory(self) -> str:
        """This attempt's own place in the workspace."""
        return Workspace(self.root).attempt(self.epoch, self.phase)

    @property
    def units(self) -> str:
        """The file that says what each unit is."""
        return join(self.directory, "units.json")

    @property
    def results(self) -> str:
        """The directory of result manifests."""
        return join(self.directory, "results")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a unit did; ``detail`` is the phase's own, ledger included."""

    records: int
    bytes: int
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finished:
    """What a phase ends with: its result, and what is recorded in the very transaction that makes the phase DONE."""

    result: Mapping[str, Any]
    record: Callable[[FencedTransaction], None]


def run_unit(payload: str, unit: str, _task_attempt: int) -> None:
    """Entry of a Spark task. Spark numbers attempts anew for every stage, so file names draw their own luck."""
    job = Job.from_json(payload)
    reach(f"{job.phase}.unit")
    definition = _units(job.units)[unit]
    module = importlib.import_module(f"cdr_core.phases.{job.phase}")
    outcome: Outcome = module.execute(job, load_plan(job.plan), definition, f"{unit}-{uuid.uuid4().hex[:12]}")
    reach(f"{job.phase}.before-result")
    write_json(join(job.results, f"{unit}.json"), asdict(outcome))
    reach(f"{job.phase}.after-result")


@lru_cache(maxsize=8)
def load_plan(uri: str) -> Plan:
    """The plan, once per worker process."""
    return Plan.from_json(storage_for(uri).read(uri).decode())


@lru_cache(maxsize=8)
def _units(uri: str) -> dict[str, Any]:
    return read_json(uri)
