"""The executor's side of a phase: run one unit and leave an exclusive result manifest in the workspace.

Executors never talk to the database. The driver learns of a finished unit from its manifest; of two attempts at the
same unit (a retried or speculative Spark task) the first manifest wins, and what the other wrote is swept later.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cdr_core.channels.channel_batch import let_go
from cdr_core.channels.channel_source import close_files
from cdr_core.channels.remote_state import Fetches, fetching
from cdr_core.channels.source_index import use_index
from cdr_core.channels.table_shapes import TableShape
from cdr_core.errors import Refused, Unreadable
from cdr_core.faults import reach
from cdr_core.log import LogFormat, configure, log_fields, with_fields
from cdr_core.metadata import Phase
from cdr_core.planning.plan import Plan
from cdr_core.runtime.phase_definition import definition_of
from cdr_core.runtime.unit_results import SUFFIX
from cdr_core.runtime.workspace import Workspace
from cdr_core.settings import MIB
from cdr_core.storage import is_local, join, storage_for
from cdr_core.storage.column_codec import encode_columns
from cdr_core.storage.local import local_path

if TYPE_CHECKING:
    pass


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """What every unit of a phase needs to know; travels as JSON, because a Spark server's own settings are fixed.

    ``sources`` is the index of the source's objects. ``materialise``: nothing is drained from where it lies in the
    source. ``scratch`` and ``drain_scratch`` are the settings.
    ``shape``: the columns of the table. ``checkpoint_interval`` in seconds, 0 = none are taken unasked.
    ``read_back``: the drain reads each file before a snapshot names it, because it may be published at once.
    ``drain_order``: exchanges that come first; ``stage``: drain up to this stage of them only, ``None`` = everything.
    """

    phase: str
    recovery: str
    epoch: int
    root: str
    plan: str
    target: str
    segment_size: int
    spill_file_size: int
    page_size: int
    memory_budget: int
    checkpoints: bool
    checkpoint_interval: float = 0.0
    output_file_size: int = 512 * MIB
    read_back: bool = False
    drain_order: tuple[str, ...] = ()
    stage: int | None = None
    sources: str = ""
    materialise: bool = False
    drain_scratch: int = 0
    on_corrupt: str = "fail"
    scratch: str = ""
    log_level: str = ""
    log_format: LogFormat = LogFormat.TEXT
    shape: TableShape = TableShape.VALUES_ONLY

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        value = json.loads(text)
        return cls(
            **{
                **value,
                "shape": TableShape(value["shape"]),
                "drain_order": tuple(value["drain_order"]),
                "log_format": LogFormat(value["log_format"]),
            }
        )

    @property
    def directory(self) -> str:
        """This attempt's own place in the workspace."""
        return Workspace(self.root).attempt(self.epoch, self.phase)

    @property
    def makes(self) -> Path:
        """Where this host makes files on their way to the attempt's place, and keeps what it fetched from it."""
        if is_local(self.root):
            return local_path(self.directory)
        return scratch_directory(self.scratch) / f"cdr-{self.recovery}-e{self.epoch}"

    @property
    def scratch_place(self) -> Path:
        """Where files without a name lie while a task runs."""
        return local_path(self.directory) if is_local(self.root) else scratch_directory(self.scratch)

    @property
    def units(self) -> str:
        """The file that says what each unit is."""
        return join(self.directory, "units.json")

    @property
    def results(self) -> str:
        """The directory of result manifests."""
        return join(self.directory, "results")


def scratch_directory(setting: str) -> Path:
    """As set, else where Spark's workers put what they remove when the application ends, else the temporary one."""
    given = [place for place in os.environ.get("SPARK_EXECUTOR_DIRS", "").split(os.pathsep) if place]
    return Path(setting or next(iter(given), tempfile.gettempdir()))


def run_unit(payload: str, unit: str, task_attempt: int) -> None:
    """Entry of a Spark task. Spark numbers attempts anew for every stage, so file names draw their own luck.

    A task that is tried again passes over those of its units that have a result.
    """
    job = Job.from_json(payload)
    configure(job.log_level, job.log_format)
    with log_fields(recovery=job.recovery, phase=job.phase, epoch=job.epoch, unit=unit):
        _run_unit(job, unit, task_attempt)


def _run_unit(job: Job, unit: str, task_attempt: int) -> None:
    if task_attempt and storage_for(job.results).exists(join(job.results, f"{unit}{SUFFIX}")):
        return
    reach(f"{job.phase}.unit")
    phase, plan = definition_of(Phase(job.phase)), load_plan(job.plan)
    definition = _units(job.units, Phase(job.phase))[unit]
    use_index(plan.metadata_sha256, job.sources)
    try:
        with _scratch(job) as fetches:
            outcome = phase.execute(job, plan, definition, f"{unit}-{uuid.uuid4().hex[:12]}")
    finally:
        close_files()
    if outcome is None:  # the unit goes on in a later round
        return
    result = msgspec.structs.replace(outcome.result, fetched_bytes=fetches.bytes)
    value = {"records": outcome.records, "bytes": outcome.bytes, "detail": msgspec.to_builtins(result)}
    reach(f"{job.phase}.before-result")
    manifest = join(job.results, f"{unit}{SUFFIX}")
    storage_for(manifest).create(manifest, encode_columns(value, outcome.columns))
    log.debug("unit done", extra=with_fields(records=outcome.records, bytes=outcome.bytes, fetched=fetches.bytes))
    reach(f"{job.phase}.after-result")


def end_task() -> None:
    """Units of a task are done: let go of what of the source was mapped for them."""
    let_go()
    close_files()


@contextmanager
def job_scratch(job: Job) -> Iterator[Path]:
    """Where a job makes files that go to S3; the directory goes when it is empty."""
    try:
        yield job.makes
    finally:
        if not is_local(job.root):
            with suppress(OSError):  # another task of this host is at work in it
                job.makes.rmdir()


@contextmanager
def _scratch(job: Job) -> Iterator[Fetches]:
    """What is fetched meanwhile waits in the scratch directory, which goes when it is empty."""
    with job_scratch(job) as scratch, fetching(scratch) as fetches:
        yield fetches


@lru_cache(maxsize=8)
def load_plan(uri: str) -> Plan:
    """The plan, once per worker process."""
    return Plan.from_json(storage_for(uri).read(uri).decode())


def write_units(job: Job, units: Mapping[str, Any]) -> None:
    """Tell the executors what each unit is."""
    storage_for(job.units).create(job.units, msgspec.json.encode(units))


@lru_cache(maxsize=8)
def _units(uri: str, phase: Phase) -> dict[str, Any]:
    try:
        data = storage_for(uri).read(uri)
    except Unreadable:
        raise Refused(
            f"host {socket.gethostname()} does not see the workspace: {uri} is not there",
            hint="use a workspace that every executor sees, as docs/cluster.md says",
        ) from None
    found: dict[str, Any] = msgspec.json.decode(data, type=dict[str, definition_of(phase).unit])  # type: ignore[misc]
    return found
