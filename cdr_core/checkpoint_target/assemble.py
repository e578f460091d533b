"""The commit of a recovery whose target is a checkpoint: its units, and the ``_metadata`` made of their results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from cdr_core.audit.ledger import CLOSING_STATUS, CLOSING_WATERMARK, Ledger, join_ledgers, require_others
from cdr_core.audit.receipt import sealed
from cdr_core.channels.channel_source import open_planned
from cdr_core.checkpoint_target.channel_files import channel_units, check_channels, handles_of
from cdr_core.checkpoint_target.state_migration import move_state, state_units, subtasks_in
from cdr_core.checkpoint_target.units import ChannelsUnit, CommitResult, MovedState, PublishedUnit, StateUnit
from cdr_core.commit.commit_store import commit_user
from cdr_core.commit.committable import Committable
from cdr_core.commit.sinks import sink_for
from cdr_core.commit.sinks.checkpoint import CheckpointSink
from cdr_core.errors import JobFailed
from cdr_core.faults import reach
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.flink.metadata import SubtaskState, write_metadata
from cdr_core.flink.rewritten_metadata import rewritten
from cdr_core.kernels import frames
from cdr_core.planning.job_spec import parse_spec
from cdr_core.planning.parallelism import new_parallelism, parse_parallelism
from cdr_core.planning.plan import Plan
from cdr_core.runtime.phase_definition import Outcome
from cdr_core.runtime.phase_ledgers import line_key
from cdr_core.runtime.phase_outputs import spilled_by
from cdr_core.runtime.unit_runner import Job
from cdr_core.storage import join, storage_for
from cdr_core.targets import Target

if TYPE_CHECKING:
    from cdr_core.metadata import Recovery
    from cdr_core.runtime.driver import PhaseRun

OUTSIDE = ("depends_on", "missing", "unknown")
"""Files that stay in place: all of them, the missing ones, and those that cdr cannot look for."""

CheckpointUnit = ChannelsUnit | StateUnit | PublishedUnit

KEEP, DOWNSTREAM = "keep", "downstream"
"""Treatment of output state: it stays output state, or becomes input state of the downstream."""


@dataclass(frozen=True, slots=True)
class Assembled:
    """A ``_metadata`` that is ready to be published, and its facts for claim and receipt."""

    metadata: bytes
    facts: dict[str, Any]


def checkpoint_sink(target: Target) -> CheckpointSink:
    """Return the sink of a ``checkpoint:`` target."""
    sink = sink_for(target)
    assert isinstance(sink, CheckpointSink), target
    return sink


def units(run: PhaseRun, entries: Sequence[Committable]) -> dict[str, CheckpointUnit]:
    """Return the units that commit has to do before it can publish. If it is published already, files are only read
    again; the units are the same ones for every attempt.
    """
    published = checkpoint_sink(run.recovery.output).look_up(commit_user(run.recovery.id)).published
    state = state_units(*_source(run.recovery))
    return {
        **channel_units(run.plan, entries, join=not published),
        **(dict.fromkeys(state, PublishedUnit()) if published else state),
    }


def execute(job: Job, plan: Plan, unit: CheckpointUnit, name: str) -> Outcome[CommitResult]:
    """Do one unit: check and join channels, or redistribute state and copy its files."""
    sink = checkpoint_sink(Target.parse(job.target))
    attempt = f"{job.recovery}/e{job.epoch}-{name}"
    if isinstance(unit, ChannelsUnit):
        ledger, file = check_channels(plan, unit, sink, attempt, job.directory)
        # The prepared files, even if they are not joined this time: a repeated unit must yield the same.
        records, size = sum(each.records for each in unit.files), sum(each.bytes for each in unit.files)
        result = CommitResult(subtask=unit.subtask, joined=unit.join, file=file)
        return Outcome(records, size, result, ledger.to_columns())
    if isinstance(unit, PublishedUnit):
        return Outcome(0, 0, CommitResult(joined=False))
    checkpoint = open_planned(plan.checkpoint, plan.metadata_sha256)
    metadata, moved = move_state(checkpoint, unit, sink, attempt, job.makes)
    uri = join(job.directory, f"{name}.metadata")
    storage_for(uri).create(uri, metadata)
    return Outcome(0, 0, CommitResult(state=uri, moved=moved))


def ledger_of(run: PhaseRun) -> Ledger:
    """Return the ledger of the prepared files with other elements, which must be those that were spilled."""
    found = join_ledgers(Ledger.from_columns(unit.columns) for unit in run.outputs(CommitResult) if unit.columns)
    spilled = spilled_by(run)
    tags = {CLOSING_WATERMARK: frames.TAG_WATERMARK, CLOSING_STATUS: frames.TAG_WATERMARK_STATUS}
    kinds = spilled.other_kinds.copy()
    for closing, tag in tags.items():
        kinds[spilled.other_kinds == closing] = tag
    expected = join_ledgers([replace(spilled, other_kinds=kinds)])
    require_others("commit", "wrote", expected, found, line_key(run.plan))
    return found


def assemble(run: PhaseRun, results: Sequence[CommitResult]) -> Assembled:
    """Return the new ``_metadata`` from the units' results."""
    recovery = run.recovery
    checkpoint = open_planned(recovery.source.uri, recovery.source.metadata_sha256)
    parallelism = _parallelism(checkpoint, recovery)
    files = {each.subtask: each.file for each in results if each.subtask is not None and each.file is not None}
    moved = [result.moved for result in results if result.moved is not None]
    states: dict[str, list[SubtaskState]] = {}
    for result in results:
        if result.state is not None:
            operator, subtasks = subtasks_in(storage_for(result.state).read(result.state))
            states.setdefault(operator, []).extend(subtasks)
    handles = handles_of(run.plan, files, checkpoint.metadata.version)
    metadata = write_metadata(rewritten(checkpoint.metadata, parallelism, states, handles))
    made = [file for each in moved for file in each.made]
    return Assembled(metadata, facts(recovery, [*map(msgspec.to_builtins, files.values()), *made], moved))


def facts(recovery: Recovery, files: Sequence[Mapping[str, Any]], moved: Sequence[MovedState]) -> dict[str, Any]:
    """Return the contents of a claim besides the publication's own properties."""
    copied = {file["path"]: file for each in moved for file in each.copied}
    return {
        "source_metadata_sha256": recovery.source.metadata_sha256,
        "output_state": DOWNSTREAM if recovery.options.recover_output_downstream else KEEP,
        "files": [{name: file[name] for name in ("path", "records", "bytes", "crc32c")} for file in files],
        "copied": [copied[path] for path in sorted(copied)],
        **{name: sorted({path for each in moved for path in getattr(each, name)}) for name in OUTSIDE},
        "state": {name: sum(getattr(each, name) for each in moved) for name in ("read", "written")},
    }


def ready(run: PhaseRun, sink: CheckpointSink, results: Sequence[CommitResult]) -> CheckpointSink:
    """Return the sink with its prepared ``_metadata``; without one if the checkpoint exists already."""
    if sink.look_up(commit_user(run.recovery.id)).published:
        return sink
    if any(result.joined is False for result in results):
        # The units did no work because it existed: their results are no whole checkpoint.
        raise JobFailed(
            f"{sink.directory} held the checkpoint when commit began, and now it is gone", hint="run commit again"
        )
    assembled = assemble(run, results)
    reach("commit.assembled")
    return sink.holding(assembled.metadata, assembled.facts)


def beside(run: PhaseRun, sink: CheckpointSink, receipt: Mapping[str, Any]) -> dict[str, Any]:
    """Return the receipt with the facts of the checkpoint; write a copy beside it.

    It describes the published checkpoint, whichever attempt published it.
    """
    claim = sink.claim()
    written = {name: claim[name] for name in ("metadata_sha256", "output_state", "copied", "depends_on", "state")}
    written |= {name: claim.get(name, []) for name in OUTSIDE}  # older claims do not list missing files
    value = sealed(
        {
            **receipt,
            "dropped_by_rule": {
                "rule": "elements that are no records go on as other_elements says",
                "elements": dict(receipt["other_elements"].get("dropped", {})),
            },
            "checkpoint": {"directory": sink.directory, **written, "files": claim["files"]},
        }
    )
    with run.fenced():  # a copy of an older attempt must not take the place of a newer one's
        pass
    sink.write_receipt(value)
    reach("commit.receipt-beside")
    return value


def remove_parts(run: PhaseRun, sink: CheckpointSink) -> None:
    """Remove prepared files that the published checkpoint does not name: they were joined, or another attempt
    published.
    """
    needed = {file["path"] for file in sink.claim()["files"]}
    prepared = {
        file["path"] for row in run.repository.prepared(run.recovery.id) for file in json.loads(row.manifest)["files"]
    }
    for path in sorted(prepared - needed):
        sink.delete(path)


def _source(recovery: Recovery) -> tuple[Any, Mapping[str, int]]:
    checkpoint = open_planned(recovery.source.uri, recovery.source.metadata_sha256)
    return checkpoint.metadata, _parallelism(checkpoint, recovery)


def _parallelism(checkpoint: Checkpoint, recovery: Recovery) -> Mapping[str, int]:
    return new_parallelism(checkpoint, parse_spec(recovery.spec), parse_parallelism(recovery.parallelism))
