"""What programs call: the shell, the Airflow plugin and notebooks.

``settings`` are those in force where none are given. Every failure is a :class:`~cdr_core.errors.CdrError` with its
place and a next step. Heavy libraries are loaded by the function that needs them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cdr_core import settings as settings_module
from cdr_core.errors import CdrError, Refused, Replaced
from cdr_core.metadata.embedded import open_repository
from cdr_core.settings import Settings

if TYPE_CHECKING:
    from cdr_core.flink.checkpoint import Checkpoint
    from cdr_core.inspection.what_if import WhatIf
    from cdr_core.metadata import Phase, Repository
    from cdr_core.planning.estimate import Speed
    from cdr_core.recovery.recovery_request import RecoveryRequest
    from cdr_core.runtime.driver import Progress
    from cdr_core.runtime.executor_backend import Workers
    from cdr_core.verify.report import Report
    from cdr_core.verify.verify import Request

OnProgress = Callable[["Progress"], None]


class RecoverySummary(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A recovery that is done. ``seconds``: of this run, by phase. ``missing``: files outside of a written checkpoint
    without which Flink cannot restore it. The receipt has the rest.
    """

    recovery: str
    state: str
    verdict: str
    proven: bool
    exchanges: list[dict[str, Any]]
    receipt: str
    records: int
    bytes: int
    seconds: dict[str, float]
    output: str
    missing: tuple[str, ...] = ()


def open_checkpoint(path: str) -> Checkpoint:
    """Return a checkpoint with its metadata read, and no payload."""
    from cdr_core.channels.channel_source import open_checkpoint as open_it

    return open_it(path)


def inspect(path: str, spec: str = "") -> dict[str, Any]:
    """Return the contents of a checkpoint, as ``cdr inspect --json`` prints them."""
    from cdr_core.inspection.checkpoint_view import inspect_checkpoint

    return inspect_checkpoint(path, spec)


def plan(
    checkpoint: str,
    spec: str,
    parallelism: str,
    to: str = "",
    *,
    settings: Settings | None = None,
    exact: bool | None = None,
    speed: Speed | None = None,
    trust_key: bool = False,
    with_channels: bool = True,
) -> WhatIf:
    """Return what a recovery would do, and all refusals. ``exact``: read every record; ``None`` = if they are few.

    Raise if the checkpoint cannot be read.
    """
    from cdr_core.inspection.what_if import what_if

    options = settings or settings_module.load()
    return what_if(
        checkpoint,
        spec,
        parallelism,
        to,
        options,
        exact=exact,
        speed=speed,
        trust_key=trust_key,
        with_channels=with_channels,
    )


def create(request: RecoveryRequest, *, settings: Settings | None = None) -> str:
    """Return the id of the recovery for this request: a new one, or the one of the same checkpoint and target."""
    from cdr_core.recovery.recovery_request import create_in

    options = settings or settings_module.load()
    with open_repository(options.database_url) as repository:
        return create_in(repository, request, options)[0].id


def recover(
    request: RecoveryRequest, *, settings: Settings | None = None, on_progress: OnProgress | None = None
) -> RecoverySummary:
    """Run the five phases in this process. The same request again resumes the recovery, or returns its result."""
    return resume(create(request, settings=settings), settings=settings, on_progress=on_progress)


def resume(
    recovery: str, *, settings: Settings | None = None, on_progress: OnProgress | None = None
) -> RecoverySummary:
    """Run what is left of a recovery in this process."""
    from cdr_core.metadata import Phase
    from cdr_core.runtime.executor_backend import SparkWorkers

    options = settings or settings_module.load()
    seconds: dict[str, float] = {}
    with open_repository(options.database_url) as repository:
        with SparkWorkers(options) as workers:
            for phase in Phase:
                began = time.monotonic()
                run_phase_here(repository, recovery, phase, options, workers, on_progress)
                seconds[str(phase)] = round(time.monotonic() - began, 3)
        return _summary(repository, recovery, seconds)


def start_over(recovery: str, token: str, *, settings: Settings | None = None, **changes: Any) -> str:
    """Return the id of the recovery that takes the place of one that published nothing. ``changes``: ``parallelism``,
    ``on_corrupt``, ``trust_key``. ``token`` identifies this start-over. One that was replaced already is refused.
    """
    from cdr_core.recovery.recovery_request import create_in, request_of

    options = settings or settings_module.load()
    with open_repository(options.database_url) as repository:
        stored = repository.recovery(recovery)
        if stored.replaced_by is not None:
            raise Replaced(
                f"recovery {recovery} was replaced by {stored.replaced_by}",
                hint=f"run: cdr resume {stored.replaced_by} --replace",
            )
        request = request_of(
            stored,
            changes.get("parallelism", ""),
            changes.get("on_corrupt", ""),
            trust_key=changes.get("trust_key", False),
            replace=token,
        )
        return create_in(repository, request, options)[0].id


def run_phase_here(
    repository: Repository,
    recovery: str,
    phase: Phase,
    settings: Settings,
    workers: Workers,
    on_progress: OnProgress | None = None,
) -> Mapping[str, Any]:
    """Run one phase in this process. A phase that is done returns its stored result."""
    from cdr_core.runtime.driver import run_phase, stored_result
    from cdr_core.runtime.phase_command import own_runner
    from cdr_core.runtime.pin_file import begin

    attempt = begin(repository, recovery, phase, own_runner(str(phase)))
    if attempt is None:
        return stored_result(repository, recovery, phase)
    return run_phase(
        repository, recovery, phase, attempt.epoch, settings, workers, on_progress or (lambda progress: None)
    )


def verify(
    receipt: str = "",
    *,
    source: str = "",
    output: str = "",
    spec: str = "",
    parallelism: str = "",
    without_source: bool = False,
    settings: Settings | None = None,
) -> Report:
    """Read source and output again by the independent reader. ``receipt``: a path, an address or a recovery's id; what
    is not given comes from it.
    """
    from cdr_core.verify.verify import Request
    from cdr_core.verify.verify import verify as compare
    from cdr_core.verify.without_source import verify_without_source

    if not receipt:
        return compare(Request(source, output, spec, parallelism))
    request = _claimed(receipt, settings or settings_module.load(), source, output, spec, parallelism)
    assert request.claims is not None, "a receipt was given"
    if without_source:
        return verify_without_source(request.output, request.spec, request.claims)
    return compare(request)


def _claimed(receipt: str, settings: Settings, source: str, output: str, spec: str, parallelism: str) -> Request:
    """Return what a receipt claims; a file of this name comes before the recovery with this id."""
    from cdr_core.storage import storage_for
    from cdr_core.verify.claims import read_claims
    from cdr_core.verify.verify import Request

    if "/" in receipt or Path(receipt).exists():
        claims = read_claims(storage_for(receipt).read(receipt), receipt, receipt.rpartition("/")[0] or ".")
    else:
        with open_repository(settings.database_url) as repository:
            found, state = repository.receipt(receipt), repository.recovery(receipt).state
        if found is None:
            raise Refused(f"recovery {receipt} has no receipt, it is {state}", hint=f"run: cdr status {receipt}")
        claims = read_claims(json.dumps(found).encode(), f"the receipt of {receipt}")
    recovery = claims.recovery
    return Request(
        source=source or str(recovery["source"]),
        output=output or str(recovery["target"]),
        spec=spec or str(recovery.get("spec") or _stored_spec(str(recovery["id"]), settings)),
        parallelism=parallelism or str(recovery.get("parallelism") or ""),
        claims=claims,
    )


def _stored_spec(recovery: str, settings: Settings) -> str:
    """Return the spec of the recovery's row, for receipts that do not contain it."""
    try:
        with open_repository(settings.database_url) as repository:
            return repository.recovery(recovery).spec
    except CdrError:
        raise Refused("the receipt carries no job spec", hint="give it with --spec") from None


def _summary(repository: Repository, recovery: str, seconds: dict[str, float]) -> RecoverySummary:
    from cdr_core.metadata import Phase
    from cdr_core.runtime.driver import stored_result

    result = stored_result(repository, recovery, Phase.COMMIT)
    receipt = repository.receipt(recovery) or {}
    return RecoverySummary(
        recovery=recovery,
        state=str(repository.recovery(recovery).state),
        verdict=result["verdict"],
        proven=receipt.get("proven", False),
        exchanges=receipt.get("exchanges", []),
        receipt=result["receipt"],
        records=result["records"],
        bytes=result["bytes"],
        seconds=seconds,
        output=result["location"],
        missing=tuple(receipt.get("checkpoint", {}).get("missing") or ()),
    )
