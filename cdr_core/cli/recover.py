"""``cdr recover``, ``cdr resume`` and ``cdr phase``: running the phases here, without Airflow."""

from __future__ import annotations

import time
import uuid
from typing import Annotated, Any

import typer

from cdr_core.cli.common import TARGETS, JsonFlag, load_settings, open_repository, print_json
from cdr_core.errors import Replaced

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
    from cdr_core.planning.drain_order import parse_order
    from cdr_core.recovery.recovery_request import RecoveryRequest, create_in

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
    with open_repository(settings) as repository:
        recovery, _ = create_in(repository, request, settings)
        if create_only:
            _say(as_json, {"recovery": recovery.id, "state": str(recovery.state)}, recovery.id)
            return
        _run_to_the_end(repository, recovery.id, settings, as_json)


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
    from cdr_core.recovery.recovery_request import create_in, request_of

    if (parallelism or on_corrupt or trust_key) and not replace:
        raise typer.BadParameter("other options make it another recovery: add --replace", param_hint="--replace")
    settings = load_settings()
    with open_repository(settings) as repository:
        stored = repository.recovery(recovery)
        if replace and stored.replaced_by is not None:
            raise Replaced(
                f"recovery {recovery} was replaced by {stored.replaced_by}",
                hint=f"run: cdr resume {stored.replaced_by} --replace",
            )
        if replace:
            request = request_of(stored, parallelism, on_corrupt, trust_key=trust_key, replace=_token())
            stored, _ = create_in(repository, request, settings)
        _run_to_the_end(repository, stored.id, settings, as_json)


def _token() -> str:
    """Return a token that identifies this start-over."""
    return f"shell-{uuid.uuid4().hex}"


def _run_to_the_end(repository: Any, recovery: str, settings: Any, as_json: bool) -> None:
    from cdr_core.runtime.quarantine import require_whole

    seconds = _run_phases(repository, recovery, settings)
    summary = _summary(repository, recovery, seconds)
    _say(as_json, summary, _as_text(summary))
    require_whole(recovery, summary["verdict"])


def phase(
    name: Annotated[str, typer.Argument(metavar="NAME", help="read, filter, spill, drain or commit.")],
    recovery: Annotated[str, typer.Argument(metavar="RECOVERY", help="Id of the recovery.")],
    as_json: JsonFlag = False,
) -> None:
    """Run one phase of a recovery here; a phase that is done returns its stored result."""
    from cdr_core.cli.progress import PhaseBars
    from cdr_core.metadata import Phase
    from cdr_core.runtime.executor_backend import SparkWorkers
    from cdr_core.runtime.quarantine import require_whole

    if name not in set(Phase):
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(Phase)}", param_hint="NAME")
    settings = load_settings()
    with open_repository(settings) as repository, SparkWorkers(settings) as workers, PhaseBars() as bars:
        result = _run_one(repository, recovery, Phase(name), settings, workers, bars)
    _say(as_json, result, f"{name}: done, {result.get('records', 0):,} records")
    require_whole(recovery, result.get("verdict", ""))


def _run_phases(repository: Any, recovery: str, settings: Any) -> dict[str, float]:
    from cdr_core.cli.progress import PhaseBars
    from cdr_core.metadata import Phase
    from cdr_core.runtime.executor_backend import SparkWorkers

    seconds: dict[str, float] = {}
    with SparkWorkers(settings) as workers, PhaseBars() as bars:
        for each in Phase:
            started = time.monotonic()
            _run_one(repository, recovery, each, settings, workers, bars)
            seconds[str(each)] = round(time.monotonic() - started, 3)
    return seconds


def _run_one(repository: Any, recovery: str, phase: Any, settings: Any, workers: Any, bars: Any) -> Any:
    from cdr_core.runtime.driver import run_phase, stored_result
    from cdr_core.runtime.phase_command import own_runner
    from cdr_core.runtime.pin_file import begin

    attempt = begin(repository, recovery, phase, own_runner(str(phase)))
    if attempt is None:
        return stored_result(repository, recovery, phase)
    return run_phase(repository, recovery, phase, attempt.epoch, settings, workers, bars)


def _summary(repository: Any, recovery: str, seconds: dict[str, float]) -> dict[str, Any]:
    from cdr_core.metadata import Phase
    from cdr_core.runtime.driver import stored_result

    result = stored_result(repository, recovery, Phase.COMMIT)
    receipt = repository.receipt(recovery) or {}
    missing = receipt.get("checkpoint", {}).get("missing")
    return {
        "recovery": recovery,
        "state": str(repository.recovery(recovery).state),
        "verdict": result["verdict"],
        "proven": receipt.get("proven", False),
        "exchanges": receipt.get("exchanges", []),
        "receipt": result["receipt"],
        "records": result["records"],
        "bytes": result["bytes"],
        "seconds": seconds,
        "output": result["location"],
        **({"missing": missing} if missing else {}),
    }


def _as_text(summary: dict[str, Any]) -> str:
    from cdr_core.audit.receipt import verdict_text

    total = sum(summary["seconds"].values())
    verdict = verdict_text(summary["verdict"], proven=summary["proven"])
    return (
        f"{summary['recovery']}: {summary['state']}, {verdict}: {summary['records']:,} records "
        f"({summary['bytes']:,} bytes) in {total:.1f} s\n"
        f"  output   {summary['output']}\n  receipt  {summary['receipt']}"
        f"{_missing(summary.get('missing'))}{_unproven(summary['exchanges'])}"
    )


def _unproven(exchanges: list[dict[str, Any]]) -> str:
    """Return the unproven claims of the job spec, a line per exchange and claim."""
    return "".join(
        f"\n  {claim}: {finding['from']}, unproven (exchange {exchange['name']}: {finding['reason']})"
        for exchange in exchanges
        for claim in ("key", "types")
        if (finding := exchange[claim]) is not None and not finding["proven"]
    )


def _missing(paths: list[str] | None) -> str:
    """Return a note about files that Flink will not find."""
    if not paths:
        return ""
    return f"\n  missing  {len(paths):,} files outside, without which Flink cannot restore it, such as {paths[0]}"


def _say(as_json: bool, value: dict[str, Any], text: str) -> None:
    if as_json:
        print_json(value)
    else:
        typer.echo(text)
