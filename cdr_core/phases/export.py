"""A recovery checkpoint as an ordinary checkpoint in Flink's format that needs neither the source nor the spill.

By default nothing is published before commit, so what a recovery checkpoint holds (prepared, delivered, still to
come) is every in-flight record of the source: the whole of every spill set, in order, as input state of the new
subtasks. Other state of the operators is not in it.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from cdr_core.errors import Refused
from cdr_core.faults import reach
from cdr_core.flink.channel_state import ChannelId
from cdr_core.flink.channel_writer import ChannelStateFile, OwnedChannel, WrittenChannel, channel_handles
from cdr_core.flink.checkpoint import METADATA_FILE
from cdr_core.flink.metadata import RelativeFile, Side, write_metadata
from cdr_core.flink.rewrite import in_flight_only
from cdr_core.metadata import Recovery, RecoveryCheckpointState, Repository
from cdr_core.phases.draining.resume import read_cuts
from cdr_core.phases.unit import load_plan
from cdr_core.phases.workspace import read_json
from cdr_core.rescale.parallelism import new_parallelism, parse_parallelism
from cdr_core.rescale.plan import Plan
from cdr_core.rescale.source import open_planned
from cdr_core.rescale.spec import parse_spec
from cdr_core.spill.reader import read_segments
from cdr_core.spill.segments import SpillSet
from cdr_core.storage import join, storage_for
from cdr_core.storage.making import making

_BUFFER = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    directory: str
    records: int
    bytes: int


def export_checkpoint(repository: Repository, recovery_id: str, checkpoint_id: int, directory: str) -> Exported:
    """Write a complete recovery checkpoint to an empty or new directory; ``_metadata`` comes last and exclusively."""
    recovery = repository.recovery(recovery_id)
    rows = {row.checkpoint_id: row for row in repository.checkpoints(recovery_id)}
    row = rows.get(checkpoint_id)
    if row is None or row.state is not RecoveryCheckpointState.COMPLETED:
        state = "unknown" if row is None else str(row.state)
        raise Refused(f"recovery checkpoint {checkpoint_id} of {recovery_id} is {state}", hint="take a new one")
    if repository.commit_log(recovery_id):
        raise Refused(
            f"recovery {recovery_id} has begun to publish: an exported checkpoint would hold those records again",
            hint=f"let it finish: cdr resume {recovery_id}",
        )
    target = join(directory.rstrip("/"), METADATA_FILE)
    if storage_for(target).exists(target):
        raise Refused(f"{directory} holds a checkpoint already", hint="name an empty directory")
    assert recovery.plan_uri is not None, "a recovery with a checkpoint has a plan"
    plan = load_plan(recovery.plan_uri)
    written: list[WrittenChannel] = []
    records = size = 0
    for cut in read_cuts(row).values():
        spill_set = SpillSet.from_json(read_json(cut["body"]["manifest"]))
        written += _write_set(plan, spill_set, directory.rstrip("/"))
        records += sum(entry.tally.records for entry in spill_set.ledger)
        size += sum(segment.length for segment in spill_set.segments)
    reach("export.files")
    _write_metadata(recovery, written, target)
    return Exported(directory, records, size)


def _write_set(plan: Plan, spill_set: SpillSet, directory: str) -> list[WrittenChannel]:
    """One channel-state file per subtask that has in-flight data."""
    if not spill_set.segments:
        return []
    name = str(uuid.uuid4())
    subtask = plan.subtasks[spill_set.subtask]
    with (
        making(join(directory, name), Path(tempfile.gettempdir())) as temporary,
        temporary.open("xb", buffering=_BUFFER) as stream,
    ):
        file = ChannelStateFile(stream)
        for body in read_segments(spill_set):
            at = ChannelId(subtask.index, body.segment.gate, body.segment.channel)
            file.append(OwnedChannel(subtask.operator, Side.INPUT, at), [body.body.data])
        stream.flush()
        os.fsync(stream.fileno())
    return list(file.written(RelativeFile(name, file.size)))


def _write_metadata(recovery: Recovery, written: list[WrittenChannel], target: str) -> None:
    source = open_planned(recovery.source.uri, recovery.source.metadata_sha256)
    wish = parse_parallelism(recovery.parallelism)
    parallelism = new_parallelism(source, parse_spec(recovery.spec), wish)
    handles = channel_handles(written, source.metadata.version)
    metadata = in_flight_only(source.metadata, parallelism, handles)
    if not storage_for(target).create(target, write_metadata(metadata)):
        raise Refused(f"{target} was written by somebody else", hint="name an empty directory")
    reach("export.metadata")
