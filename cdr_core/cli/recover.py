"""``cdr recover``, ``cdr resume`` and ``cdr phase``: running the phases here, without Airflow."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from cdr_core.cli.common import TARGETS, JsonFlag, load_settings, open_repository, print_json

if TYPE_CHECKING:
    from cdr_core.api import RecoverySummary
    from cdr_core.settings import Settings

Checkpoint = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint's directory (chk-N).")]
Spec = Annotated[str, typer.Option("--spec", help="The job spec: a YAML file.")]
Parallelism = Annotated[str, typer.Option("--parallelism", help="2, slow=2,gen=3 or same.")]
Target = Annotated[str, typer.Option("--to", help=f"Where the records go: {TARGETS}.")]


def recover(
    checkpoint: Checkpoint,
    spec: Spec,
    parallelism: Parallelism,
    to: Target,
    checkpoint_interval: Annotated[str, typer.Option(help="A recovery checkpoint this often, such as 10s.")] = "",
    on_corrupt: Annotated[
        str,
        typer.Option(help="A damaged channel: fail, or quarantine its end from the damage on and recover the rest."),
    ] = "fail",
    drop_records: Annotated[
        list[str] | None,
        typer.Option(
            "--drop-records",
            metavar="EXCHANGE:UP:DOWN:POS[-POS] | FILE",
            help="Records to leave out, as cdr elements numbers them, or a file of such lines or of lines that "
            "cdr elements --json printed; may be repeated.",
        ),
    ] = None,
    drain_order: Annotated[
        str,
        typer.Option(
            "--drain-order",
            metavar="EXCHANGE,…",
            help="Exchanges to drain before the others, and to publish before them with CDR_COMMIT=per-checkpoint.",
        ),
    ] = "",
    trust_key: Annotated[
        bool, typer.Option("--trust-key", help="Recover by a key that nothing in the checkpoint proves.")
    ] = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Start over if this checkpoint and target have a recovery that has published nothing."
        ),
    ] = False,
    create_only: Annotated[bool, typer.Option("--create-only", help="Only make the recovery's row.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Run the five phases here.

    Running the same command again resumes the recovery, or returns its stored result.
    """
    from cdr_core import api
    from cdr_core.planning.drain_order import parse_order
    from cdr_core.recovery.recovery_request import RecoveryRequest

    settings = load_settings()
    request = RecoveryRequest(
        checkpoint,
        spec,
        parallelism,
        to,
        checkpoint_interval,
        on_corrupt,
        tuple(drop_records or ()),
        trust_key,
        replace=_token() if replace else "",
        drain_order=parse_order(drain_order),
    )
    recovery = api.create(request, settings=settings)
    if not create_only:
        _run_to_the_end(recovery, settings, as_json)
        return
    with open_repository(settings) as repository:
        state = repository.recovery(recovery).state
    _say(as_json, {"recovery": recovery, "state": str(state)}, recovery)


def resume(
    recovery: Annotated[str, typer.Argument(metavar="RECOVERY", help="Id of the recovery.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Start it over, with the options below; refused once it has published.")
    ] = False,
    parallelism: Annotated[str, typer.Option("--parallelism", help="With --replace: another parallelism.")] = "",
    on_corrupt: Annotated[str, typer.Option("--on-corrupt", help="With --replace: fail or quarantine.")] = "",
    trust_key: Annotated[
        bool, typer.Option("--trust-key", help="With --replace: recover by a key that nothing proves.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Resume a recovery after a crash or a failure, with its own options; a finished one returns its result."""
    from cdr_core import api

    if (parallelism or on_corrupt or trust_key) and not replace:
        raise typer.BadParameter("other options make it another recovery: add --replace", param_hint="--replace")
    settings = load_settings()
    if replace:
        changes = {"parallelism": parallelism, "on_corrupt": on_corrupt, "trust_key": trust_key}
        recovery = api.start_over(recovery, _token(), settings=settings, **changes)
    _run_to_the_end(recovery, settings, as_json)


def _token() -> str:
    """Return a token that identifies this start-over."""
    return f"shell-{uuid.uuid4().hex}"


def _run_to_the_end(recovery: str, settings: Settings, as_json: bool) -> None:
    from cdr_core import api
    from cdr_core.cli.progress import PhaseBars
    from cdr_core.runtime.quarantine import require_whole

    with PhaseBars() as bars:
        summary = api.resume(recovery, settings=settings, on_progress=bars)
    _say(as_json, msgspec.to_builtins(summary), _as_text(summary))
    require_whole(recovery, summary.verdict)


def phase(
    name: Annotated[str, typer.Argument(metavar="NAME", help="read, filter, spill, drain or commit.")],
    recovery: Annotated[str, typer.Argument(metavar="RECOVERY", help="Id of the recovery.")],
    as_json: JsonFlag = False,
) -> None:
    """Run one phase of a recovery here; a phase that is done returns its stored result."""
    from cdr_core import api
    from cdr_core.cli.progress import PhaseBars
    from cdr_core.metadata import Phase
    from cdr_core.runtime.executor_backend import SparkWorkers
    from cdr_core.runtime.quarantine import require_whole

    if name not in set(Phase):
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(Phase)}", param_hint="NAME")
    settings = load_settings()
    with open_repository(settings) as repository, SparkWorkers(settings) as workers, PhaseBars() as bars:
        result = api.run_phase_here(repository, recovery, Phase(name), settings, workers, bars)
    _say(as_json, result, f"{name}: done, {result.get('records', 0):,} records")
    require_whole(recovery, result.get("verdict", ""))


def _as_text(summary: RecoverySummary) -> str:
    from cdr_core.audit.receipt import verdict_text

    total = sum(summary.seconds.values())
    verdict = verdict_text(summary.verdict, proven=summary.proven)
    return (
        f"{summary.recovery}: {summary.state}, {verdict}: {summary.records:,} records "
        f"({summary.bytes:,} bytes) in {total:.1f} s\n"
        f"  output   {summary.output}\n  receipt  {summary.receipt}"
        f"{_missing(summary.missing)}{_unproven(summary.exchanges)}"
    )


def _unproven(exchanges: Sequence[Mapping[str, Any]]) -> str:
    """Return the unproven claims of the job spec, a line per exchange and claim."""
    return "".join(
        f"\n  {claim}: {finding['from']}, unproven (exchange {exchange['name']}: {finding['reason']})"
        for exchange in exchanges
        for claim in ("key", "types")
        if (finding := exchange[claim]) is not None and not finding["proven"]
    )


def _missing(paths: Sequence[str]) -> str:
    """Return a note about files that Flink will not find."""
    if not paths:
        return ""
    return f"\n  missing  {len(paths):,} files outside, without which Flink cannot restore it, such as {paths[0]}"


def _say(as_json: bool, value: Mapping[str, Any], text: str) -> None:
    if as_json:
        print_json(value)
    else:
        typer.echo(text)
