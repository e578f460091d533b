"""A recovery predicted before anything is done: the share of each new subtask, and all refusals."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Any

from cdr_core.errors import CdrError, Refused
from cdr_core.targets import KINDS, Target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cdr_core.evidence.spec_evidence import ExchangeEvidence
    from cdr_core.flink.checkpoint import Checkpoint
    from cdr_core.inspection.rows import Rows
    from cdr_core.metadata import Repository
    from cdr_core.planning.estimate import Outlook, Speed
    from cdr_core.planning.plan import Examined, Plan
    from cdr_core.recovery.recovery_request import RecoveryRequest
    from cdr_core.settings import Settings

COUNTED_UP_TO = 256 * 1000 * 1000
"""Bytes in flight up to which every record is read unless the user decides otherwise: a few seconds."""
MEASURED_FROM = 64 * 1024 * 1024
"""Bytes in flight. The time of smaller recoveries is mostly the start of Spark."""
MEASURED_LAST = 5
"""Recoveries whose median speed counts."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """``value`` as ``cdr plan --json`` prints it, and every refusal."""

    value: dict[str, Any]
    refusals: tuple[CdrError, ...]


def what_if(
    path: str,
    spec: str,
    parallelism: str,
    to: str,
    settings: Settings,
    *,
    exact: bool | None,
    speed: Speed | None,
    trust_key: bool = False,
    with_channels: bool = True,
) -> WhatIf:
    """Return the what-if; a checkpoint that cannot be read raises.

    ``exact``: every record is read; ``None`` = if there are not too many. ``with_channels``: each new subtask lists its
    virtual channels, which the text does not show.
    """
    from cdr_core.channels.channel_source import open_checkpoint
    from cdr_core.channels.record_counts import count_records, plan_sizes
    from cdr_core.evidence.spec_evidence import gather_evidence, keys_are_proven
    from cdr_core.planning.estimate import counted, estimated, misplaced

    checkpoint = open_checkpoint(path)
    examined = _examine(checkpoint, spec, parallelism, settings)
    planned, refused = examined.plan, list(examined.refusals)
    evidence = gather_evidence(checkpoint, planned, shown=settings.show_samples)
    refused += [refusal for each in evidence for refusal in each.refusals(trusted=trust_key)]
    if to:
        from cdr_core.recovery.recovery_request import RecoveryRequest  # which takes a second to load

        request = RecoveryRequest(path, spec, parallelism, to, trust_key=trust_key)
        refused += _target_refusals(request, settings, evidence, alone=not refused)
    state, blocked = _other_state(checkpoint, spec, parallelism, to)
    refused = list({str(error): error for error in (*refused, *blocked)}.values())
    sizes = plan_sizes(checkpoint, planned)
    outlook = estimated(planned, sizes, settings.segment_size)
    speed = speed or _measured_speed(settings)
    warnings = [f"exchange {each.name}: {each.sample.misfit}" for each in evidence if each.sample.misfit]
    if (exact or (exact is None and sizes.sum() <= COUNTED_UP_TO)) and not examined.refusals:
        try:
            counts = count_records(planned)
            outlook = counted(planned, sizes, counts, settings.segment_size)
            warnings += [
                f"exchange {name}: the owner function would have sent {wrong:,} of {of:,} records elsewhere at the old "
                "parallelism; check that it does what the job's partitioner does"
                for name, (wrong, of) in misplaced(planned, counts).items()
            ]
        except CdrError as error:
            refused.append(error)
    value = {
        "path": checkpoint.address,
        "checkpoint_id": checkpoint.metadata.checkpoint_id,
        "version": checkpoint.metadata.version,
        "parallelism": parallelism.strip(),
        "to": to or None,
        "plan": None if refused else planned.sha256,
        "proven": keys_are_proven(evidence),
        **_numbers(checkpoint, planned, outlook, speed, evidence, with_channels=with_channels),
        **({} if state is None else {"state": state}),
        "warnings": warnings + _spill_warnings(outlook, planned, settings) + _missing_warnings(state),
        "refused": [_refusal(error) for error in refused],
    }
    return WhatIf(value, tuple(refused))


def _examine(checkpoint: Checkpoint, spec: str, parallelism: str, settings: Settings) -> Examined:
    """Return the plan as far as it goes; an invalid parallelism or spec leaves a plan of the rest."""
    from cdr_core.planning.job_spec import JobSpec, examine_spec, read_spec
    from cdr_core.planning.parallelism import SAME, parse_parallelism
    from cdr_core.planning.plan import Examined, examine

    refused: list[CdrError] = []
    requested = parse_parallelism(SAME)
    try:
        requested = parse_parallelism(parallelism)
    except Refused as error:
        refused.append(error)
    try:
        parsed, found = examine_spec(read_spec(spec))
    except Refused as error:
        refused.append(error)
        # Without any spec all in-flight data is unlisted, which adds no information.
        return Examined(examine(checkpoint, JobSpec("", (), ""), requested, settings.split_size).plan, tuple(refused))
    examined = examine(checkpoint, parsed, requested, settings.split_size)
    return Examined(examined.plan, tuple({str(e): e for e in (*refused, *found, *examined.refusals)}.values()))


def _target_refusals(
    request: RecoveryRequest, settings: Settings, evidence: tuple[ExchangeEvidence, ...], *, alone: bool
) -> list[CdrError]:
    """Return the refusals of the target; if nothing else is refused, also all those of ``cdr recover``."""
    from cdr_core.commit.sinks import sink_for
    from cdr_core.recovery.recovery_request import check

    try:
        if alone:
            check(request, settings, evidence=evidence)
        else:
            sink_for(Target.parse(request.to)).refuse_early()
    except CdrError as error:
        return [error]
    return []


def _other_state(
    checkpoint: Checkpoint, spec: str, parallelism: str, to: str
) -> tuple[dict[str, Any] | None, tuple[CdrError, ...]]:
    """Return, for a checkpoint as the target, the treatment of other state, and all that blocks it."""
    kind = KINDS.get(to.partition(":")[0])
    if kind is None or not kind.is_checkpoint:
        return None, ()
    from cdr_core.checkpoint_target.preflight import examine
    from cdr_core.planning.job_spec import parse_spec, read_spec
    from cdr_core.planning.parallelism import new_parallelism, parse_parallelism

    try:
        wanted = new_parallelism(checkpoint, parse_spec(read_spec(spec)), parse_parallelism(parallelism))
    except CdrError:
        return None, ()  # refused already, with the spec and the parallelism
    refusals, fates = examine(checkpoint, wanted)
    return fates.to_json(), refusals


def _numbers(
    checkpoint: Checkpoint,
    planned: Plan,
    outlook: Outlook,
    speed: Speed,
    evidence: Sequence[ExchangeEvidence],
    *,
    with_channels: bool,
) -> dict[str, Any]:
    from cdr_core.planning.estimate import START_SECONDS, seconds, skew

    labels = _labels(checkpoint)
    channels = _channels_by_subtask(planned, outlook) if with_channels else []
    exchanges = [
        {
            "name": e.name,
            "upstream": labels[e.upstream],
            "downstream": labels[e.downstream],
            "gate": e.gate,
            "partitioner": e.partitioner,
            "key": list(e.key),
            "owner": e.owner or None,
            "up": [e.old_up, e.new_up],
            "down": [e.old_down, e.new_down],
            "max_parallelism": e.max_parallelism,
            "channels": o.channels,
            "ambiguous": o.ambiguous,
            "bytes": o.bytes,
            "ambiguous_bytes": o.ambiguous_bytes,
            "evidence": found.to_json(),
        }
        for e, o, found in zip(planned.exchanges, outlook.exchanges, evidence, strict=True)
    ]
    subtasks = [
        {
            "operator": labels[planned.subtasks[s.subtask].operator],
            "index": planned.subtasks[s.subtask].index,
            "channels": s.channels,
            "records": s.records,
            "bytes": s.bytes,
            "bytes_min": s.low,
            "bytes_max": s.high,
            "spill": s.spill,
            "seconds": round(s.bytes / speed.bytes_per_second, 1),
            **({"virtual_channels": channels[s.subtask]} if with_channels else {}),
        }
        for s in outlook.subtasks
    ]
    return {
        "exact": outlook.exact,
        "exchanges": exchanges,
        "subtasks": subtasks,
        "skew": {labels[name]: round(value, 3) for name, value in skew(outlook, planned).items()},
        "spill": outlook.spill,
        "time": {
            "seconds": round(seconds(outlook, speed), 1),
            "start_seconds": START_SECONDS,
            "bytes_per_second": round(speed.bytes_per_second),
            "source": speed.source,
        },
        "totals": {
            "channels": len(planned.channels),
            "ambiguous": sum(exchange.ambiguous for exchange in outlook.exchanges),
            "bytes": outlook.bytes,
            "records": outlook.records,
        },
    }


def _labels(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the operators' labels; the id where two have the same."""
    operators = checkpoint.metadata.operators
    times = Counter(operator.label for operator in operators)
    return {o.operator_id: o.label if times[o.label] == 1 else o.operator_id for o in operators}


def _channels_by_subtask(planned: Plan, outlook: Outlook) -> list[Rows]:
    """Return, per new subtask, the virtual channels that may give it records, and how many bytes."""
    import numpy as np

    from cdr_core.inspection.rows import Rows, Table

    channels, lines = planned.channels, np.arange(planned.channels.line_first[-1])
    subtask = channels.subtask_of_lines(lines)
    order = np.argsort(subtask, kind="stable")
    bounds = np.searchsorted(subtask, np.arange(len(planned.subtasks) + 1), sorter=order)
    names, shares = np.array([exchange.name for exchange in planned.exchanges], object), outlook.shares(planned)
    found = []
    for begin, end in pairwise(bounds.tolist()):
        members = order[begin:end]
        of = channels.of_lines(members)
        fields = {
            "exchange": names[channels.exchange[of]],
            **{name: getattr(channels, name)[of] for name in ("up", "down", "new_up")},
            "ambiguous": channels.owner_count[of] > 1,
            "bytes": shares[members],
        }
        found.append(Rows(Table(fields, len(members))))
    return found


def _spill_warnings(outlook: Outlook, planned: Plan, settings: Settings) -> list[str]:
    from cdr_core.channels.disk_estimate import spilled_bytes

    capacities = [tier.capacity for tier in settings.spill_dirs]
    room, spill = sum(capacity or 0 for capacity in capacities), min(outlook.spill, spilled_bytes(planned, settings))
    if capacities and None not in capacities and room < spill:
        return [f"a spill of about {spill} bytes does not fit CDR_SPILL_DIRS, which may hold {room}"]
    return []


def _missing_warnings(state: Mapping[str, Any] | None) -> list[str]:
    """Return warnings about files outside without which Flink cannot restore the published checkpoint."""
    phrases = {"missing": "are not there", "unknown": "lie where cdr cannot look"}
    return [
        f"{len(paths):,} of the files outside that the new checkpoint needs {what}, such as {paths[0]}; without them "
        "Flink cannot restore it"
        for name, what in phrases.items()
        if state and (paths := state[name])
    ]


def _refusal(error: CdrError) -> dict[str, Any]:
    return {
        "kind": type(error).__name__,
        "exchange": error.where.exchange,
        "what": error.what,
        "where": str(error.where),
        "hint": error.hint,
        "exit_code": error.exit_code,
    }


def _measured_speed(settings: Settings) -> Speed:
    """Return the median of the last large recoveries of this database; an assumption if there are none."""
    from pathlib import Path

    from cdr_core.metadata import Repository
    from cdr_core.planning.estimate import ASSUMED_SPEED, Speed

    url = settings.database_url
    assumed = Speed(ASSUMED_SPEED, "assumed, cautiously: no large recovery was measured here yet")
    if url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).exists():
        return assumed
    try:
        with Repository.open(url) as repository:
            speeds = _finished_speeds(repository)
    except CdrError:
        return assumed  # a what-if does not need the database
    if not speeds:
        return assumed
    return Speed(median(speeds), f"measured, median of large recoveries here: {len(speeds)}")


def _finished_speeds(repository: Repository) -> list[float]:
    from cdr_core.metadata import Phase, RecoveryState
    from cdr_core.planning.estimate import START_SECONDS

    speeds: list[float] = []
    for recovery in repository.recoveries(limit=100, state=RecoveryState.DONE):
        phases = {phase.name: phase for phase in repository.phases(recovery.id)}
        spans = [
            (phase.ended_at - phase.started_at).total_seconds()
            for phase in phases.values()
            if phase.started_at is not None and phase.ended_at is not None
        ]
        moved = phases[Phase.READ].bytes_done
        if moved >= MEASURED_FROM and len(spans) == len(phases):
            speeds.append(moved / max(sum(spans) - START_SECONDS, 0.1))
        if len(speeds) == MEASURED_LAST:
            break
    return speeds
