"""What a user asks for, checked before anything runs, and turned into the recovery's row."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from cdr_core.channels.channel_source import open_checkpoint
from cdr_core.channels.disk_estimate import scratch_at_most, spilled_bytes
from cdr_core.channels.table_shapes import TableShape
from cdr_core.checkpoint_target.assemble import checkpoint_sink
from cdr_core.checkpoint_target.preflight import blocked
from cdr_core.commit.commit_mode import mode_for
from cdr_core.commit.commit_store import commit_user
from cdr_core.commit.publish_once import already_published, require_sight
from cdr_core.commit.sinks import sink_for
from cdr_core.errors import NotFound, Refused, Replaced, SettingsRefused
from cdr_core.evidence.spec_evidence import ExchangeEvidence, gather_evidence, refuse_unproven
from cdr_core.faults import reach
from cdr_core.flink.checkpoint import METADATA_FILE, Checkpoint
from cdr_core.log import with_fields
from cdr_core.metadata import (
    NewRecovery,
    Recovery,
    RecoveryOptions,
    RecoverySettings,
    RecoveryState,
    Repository,
    already_visible,
    generation_id,
    new_recovery_id,
)
from cdr_core.planning.drain_order import check_order
from cdr_core.planning.dropped_records import drops_by_channel, parse_drops
from cdr_core.planning.job_spec import parse_spec, read_spec
from cdr_core.planning.parallelism import new_parallelism, parse_parallelism
from cdr_core.planning.plan import Plan, make_plan
from cdr_core.recovery.retire import retire
from cdr_core.runtime.pin_file import pin, pin_file_of
from cdr_core.runtime.quarantine import FAIL, ON_CORRUPT, shows_values
from cdr_core.runtime.table_shape_choice import choose_shape
from cdr_core.runtime.unit_runner import scratch_directory
from cdr_core.settings import Settings, parse_duration
from cdr_core.spill.capacity_check import refuse_small_scratch, refuse_unfit
from cdr_core.spill.tiers import refuse_beside
from cdr_core.storage import absolute, is_local, join
from cdr_core.storage.atomic_write import is_usable
from cdr_core.storage.local import host_id
from cdr_core.targets import Target

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecoveryRequest:
    """The parameters of a recovery, as the shell and the Airflow form give them.

    ``replace``: start over if the same checkpoint and target have a recovery already; the word tells this start-over
    from others, so that asking again with it, as a retried task does, finds the recovery that it made.
    """

    checkpoint: str
    spec: str
    parallelism: str
    to: str
    checkpoint_interval: str = ""
    on_corrupt: str = FAIL
    drop_records: tuple[str, ...] = ()
    trust_key: bool = False
    replace: str = ""
    drain_order: tuple[str, ...] = ()


def request_of(
    recovery: Recovery, parallelism: str, on_corrupt: str, *, trust_key: bool, replace: str
) -> RecoveryRequest:
    """What a recovery was asked to do, with other options where they are not empty."""
    return RecoveryRequest(
        checkpoint=recovery.source.uri,
        spec=recovery.spec,
        parallelism=parallelism or recovery.parallelism,
        to=recovery.target,
        checkpoint_interval=recovery.settings.checkpoint_interval,
        on_corrupt=on_corrupt or recovery.options.on_corrupt,
        drop_records=recovery.options.drop_records,
        trust_key=trust_key or recovery.settings.trust_key,
        replace=replace,
        drain_order=recovery.options.drain_order,
    )


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """A request whose parts exist and fit together."""

    checkpoint: Checkpoint
    spec_text: str
    plan: Plan
    target: Target
    commit: str
    evidence: tuple[ExchangeEvidence, ...]
    shape: TableShape
    drops: tuple[str, ...] = ()


def check(
    request: RecoveryRequest,
    settings: Settings,
    own: Collection[str] = (),
    evidence: tuple[ExchangeEvidence, ...] | None = None,
) -> CheckedRequest:
    """Read `_metadata`, bind the spec, look at the target; refuse what cannot work before anything is written.

    ``own``: recoveries that it may turn out to be; what they hold of a tier counts as free. ``evidence``, if it was
    gathered already.
    """
    if request.on_corrupt not in ON_CORRUPT:
        raise Refused(f"on_corrupt {request.on_corrupt!r} is not one of {', '.join(ON_CORRUPT)}")
    if request.checkpoint_interval:
        _check_interval(request.checkpoint_interval)
    wish = parse_parallelism(request.parallelism)
    spec_text = read_spec(request.spec)
    spec = parse_spec(spec_text)
    checkpoint = _open(request.checkpoint)
    plan = make_plan(checkpoint, spec, wish, settings.split_size)
    evidence = evidence or gather_evidence(checkpoint, plan, shown=settings.show_samples)
    refuse_unproven(evidence, trusted=request.trust_key, needs_values=_needs_values(request))
    drops = parse_drops(request.drop_records)
    drops_by_channel(plan, drops)
    check_order(plan, request.drain_order)
    target = absolute_target(request.to)
    commit = mode_for(target, settings)
    shape = choose_shape(target, settings)
    sink_for(target).refuse_early(shape.schema(plan))
    if target.kind.is_checkpoint:
        _refuse_rewriting(checkpoint, new_parallelism(checkpoint, spec, wish), target)
    if settings.shares_workspace:
        refuse_beside(settings.workspace, settings.spill_dirs)
    if not is_usable(settings.workspace):
        raise SettingsRefused(f"the workspace {settings.workspace} cannot be written", hint="set CDR_WORKSPACE")
    _refuse_small_disks(plan, settings, own)
    return CheckedRequest(checkpoint, spec_text, plan, target, commit, evidence, shape, tuple(map(str, drops)))


def _refuse_small_disks(plan: Plan, settings: Settings, own: Collection[str]) -> None:
    """Refuse spill tiers and scratch disks that are too small. Disks of a cluster's hosts cannot be seen from here: a
    task that finds one full fails and says so.
    """
    sizes = spilled_bytes(plan, settings), settings.segment_size, settings.memory_budget
    here = not settings.spark.startswith("spark://")
    scratch = scratch_at_most(plan, settings, settings.spark_cores or os.cpu_count() or 1) if here else 0
    refuse_unfit(settings.spill_dirs, settings.workspace, *sizes, own, scratch)
    if not is_local(settings.workspace):
        refuse_small_scratch(scratch_directory(settings.scratch), scratch, "CDR_SCRATCH")


def _needs_values(request: RecoveryRequest) -> bool:
    """Whether records that do not fit their type stop the recovery: damaged ones may be put aside."""
    try:
        return shows_values(request.to)
    except Refused:
        return False  # a target that is none is refused by name


def _refuse_rewriting(checkpoint: Checkpoint, parallelism: Mapping[str, int], target: Target) -> None:
    """What forbids to write this checkpoint anew."""
    checkpoint_sink(target).refuse_other_source(checkpoint.sha256)
    for refusal in blocked(checkpoint, parallelism):
        raise refusal


def create(request: RecoveryRequest, settings: Settings) -> str:
    """The id of the recovery for this request: a new one, or the one that already has its checkpoint and target."""
    with Repository.open(settings.database_url) as repository:
        return create_in(repository, request, settings)[0].id


def create_in(repository: Repository, request: RecoveryRequest, settings: Settings) -> tuple[Recovery, bool]:
    """The recovery's row, and whether it is new."""
    checked = check(request, settings, _of_target(repository, absolute_target(request.to)))
    old = _to_be_replaced(repository, checked, request.replace) if request.replace else None
    _refuse_published_elsewhere(repository, checked)
    generation = 1 if old is None else old.generation + 1
    recovery_id = new_recovery_id() if old is None else generation_id(old.id, generation)
    attached = _attached(repository, checked, old)
    recovery, is_new = repository.create_recovery(
        NewRecovery(
            id=recovery_id,
            source=checked.checkpoint.directory,
            metadata_sha256=checked.checkpoint.sha256,
            flink_checkpoint_id=checked.checkpoint.metadata.checkpoint_id,
            spec=checked.spec_text,
            parallelism=parse_parallelism(request.parallelism).text,
            target=str(checked.target),
            options=_options(request, checked, settings, attached),
            settings=RecoverySettings(
                checkpoint_interval=request.checkpoint_interval,
                evidence=tuple(each.to_json() for each in checked.evidence),
                trust_key=request.trust_key,
                replace_token=request.replace,
                pin_file=pin_file_of(checked.checkpoint.directory, recovery_id) if settings.pin_files else "",
            ),
            workspace=join(settings.workspace, recovery_id),
            host_id=None if settings.shares_workspace else host_id(),
            generation=generation,
            replaces=None if old is None else old.id,
        )
    )
    if old is not None and is_new:
        reach("recovery.replaced")
    if recovery.generation > 1:  # also when it attaches: the process that made this generation may have died here
        retire(repository, generation_id(recovery.id, recovery.generation - 1), settings)
    if recovery.state is not RecoveryState.DONE:
        pin(recovery)
    fields = with_fields(recovery=recovery.id, source=recovery.source.uri, target=recovery.target)
    log.info("recovery created" if is_new else "recovery exists, it is continued", extra=fields)
    return recovery, is_new


def _options(
    request: RecoveryRequest, checked: CheckedRequest, settings: Settings, attached: Recovery | None
) -> RecoveryOptions:
    """A recovery that the request attaches to keeps the shape of its table, for options are compared."""
    if not checked.target.kind.is_table:
        shape, raw = None, None
    elif attached is not None:
        shape, raw = attached.options.table_shape, attached.options.table_raw
    else:
        shape, raw = str(checked.shape), None
    return RecoveryOptions(
        on_corrupt=request.on_corrupt,
        commit=checked.commit,
        table_shape=shape,
        table_raw=raw,
        drop_records=checked.drops,
        drain_order=request.drain_order,
        recover_output_downstream=_goes_downstream(checked.target, settings),
    )


def _to_be_replaced(repository: Repository, checked: CheckedRequest, token: str) -> Recovery | None:
    """The recovery that a start-over takes the place of; ``None`` if there is none, or if this start-over made it.

    Raise if this start-over made an earlier generation. Raise if the target shows output of the recovery, or has
    forgotten so much of its history that it could not: the target decides what is published, whatever the rows say.
    """
    old = repository.find_recovery(checked.checkpoint.sha256, str(checked.target))
    if old is None or old.settings.replace_token == token:
        return None
    _refuse_retry(repository, old, token)
    sink = sink_for(checked.target)
    seen = sink.look_up(commit_user(old.id))
    if seen.published:
        raise already_visible(old.id, [(each.commit_id, each.location) for each in seen.published])
    for entry in repository.commit_log(old.id):
        require_sight(seen, entry.base)
    return old


def _refuse_retry(repository: Repository, newest: Recovery, token: str) -> None:
    """Raise if this start-over made an earlier generation: a retried task must not undo a later start-over."""
    for number in range(1, newest.generation):
        made = repository.recovery(generation_id(newest.id, number))
        if made.settings.replace_token == token:
            raise Replaced(f"recovery {made.id} was replaced by {newest.id}", hint=f"run: cdr resume {newest.id}")


def _of_target(repository: Repository, target: Target) -> set[str]:
    """Recoveries with this target: asking for one again attaches to it."""
    return {line.id for line in repository.recovery_page(search=str(target)).lines if line.target == str(target)}


def _refuse_published_elsewhere(repository: Repository, checked: CheckedRequest) -> None:
    """Raise if the table shows this checkpoint's records by a recovery that a start here would not attach to."""
    if not checked.target.kind.is_table:
        return
    other = sink_for(checked.target).look_up(commit_user="").others.get(checked.checkpoint.sha256)
    if other is not None and not _is_of(repository, other, checked.target):
        raise already_published(other)


def _is_of(repository: Repository, recovery: str, target: Target) -> bool:
    try:
        found = repository.recovery(recovery)
        return found.target == str(target) and found.state is not RecoveryState.REPLACED
    except NotFound:
        return False


def _attached(repository: Repository, checked: CheckedRequest, replaced: Recovery | None) -> Recovery | None:
    """The recovery that a request attaches to; ``None`` if there is none, or if a start-over takes its place."""
    return None if replaced is not None else repository.find_recovery(checked.checkpoint.sha256, str(checked.target))


def _goes_downstream(target: Target, settings: Settings) -> bool:
    """Whether output state becomes input state; of a table's rows there is only one kind."""
    return target.kind.is_checkpoint and settings.recover_output_downstream


def _check_interval(text: str) -> None:
    try:
        parse_duration(text)
    except ValueError as error:
        raise Refused(f"checkpoint interval {error}", hint="write 10s or 5m") from None


def _open(address: str) -> Checkpoint:
    """The source. Later phases find its metadata by Flink's name, so that no other will do."""
    checkpoint = open_checkpoint(absolute(address))
    if checkpoint.file != METADATA_FILE:
        raise Refused(
            f"{checkpoint.address} is not named {METADATA_FILE}",
            hint="cdr inspect and cdr elements read it as it is; rename it to recover it",
        )
    return checkpoint


def absolute_target(text: str) -> Target:
    """One spelling per target, whatever links, dots or schemes were written: it is half of a recovery's identity."""
    target = Target.parse(text)
    return replace(target, address=absolute(target.address)) if target.kind.has_path else target
