"""``cdr recover`` and ``cdr phase``: running the phases here, without Airflow."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from cdr_core.cli.shared import JsonFlag, load_settings, open_repository, print_json

Checkpoint = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="A checkpoint's directory (chk-N).")]
Spec = Annotated[str, typer.Option("--spec", help="The job spec: a YAML file.")]
Parallelism = Annotated[str, typer.Option("--parallelism", help="2, slow=2,gen=3 or same.")]
Target = Annotated[str, typer.Option("--to", help="Where the records go: parquet:DIR.")]


def recover(
    checkpoint: Checkpoint,
    spec: Spec,
    parallelism: Parallelism,
    to: Target,
    checkpoint_interval: Annotated[str, typer.Option(help="A recovery checkpoint this often, such as 10s.")] = "",
    on_corrupt: Annotated[str, typer.Option(help="What to do with a damaged channel: fail.")] = "fail",
    create_only: Annotated[bool, typer.Option("--create-only", help="Only make the recovery's row.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Run the five phases here. The same checkpoint and target again resumes, or returns the stored result."""
    from cdr_core.phases.request import RecoveryRequest, create_in

    settings = load_settings()
    request = RecoveryRequest(checkpoint, spec, parallelism, to, checkpoint_interval, on_corrupt)
    with open_repository(settings) as repository:
        recovery, _ = create_in(repository, request, settings)
        if create_only:
            _say(as_json, {"recovery": recovery.id, "state": str(recovery.state)}, recovery.id)
            return
        seconds = _run_phases(repository, recovery.id, settings)
        summary = _summary(repository, recovery.id, seconds)
    _say(as_json, summary, _as_text(summary))


def phase(
    name: Annotated[str, typer.Argument(metavar="NAME", help="read, filter, spill, drain or commit.")],
    recovery: Annotated[str, typer.Argument(metavar="RECOVERY", help="Id of the recovery.")],
    as_json: JsonFlag = False,
) -> None:
    """Run one phase of a recovery here; a phase that is done returns its stored result."""
    from cdr_core.cli.progress import PhaseBars
    from cdr_core.metadata import Phase
    from cdr_core.phases.workers import SparkWorkers

    if name not in set(Phase):
        raise typer.BadParameter(f"{name!r} is not one of {', '.join(Phase)}", param_hint="NAME")
    settings = load_settings()
    with open_repository(settings) as repository, SparkWorkers(settings) as workers, PhaseBars() as bars:
        result = _run_one(repository, recovery, Phase(name), settings, workers, bars)
    _say(as_json, result, f"{name}: done, {result.get('records', 0):,} records")


def _run_phases(repository: Any, recovery: str, settings: Any) -> dict[str, float]:
    from cdr_core.cli.progress import PhaseBars
    from cdr_core.metadata import Phase
    from cdr_core.phases.workers import SparkWorkers

    seconds: dict[str, float] = {}
    with SparkWorkers(settings) as workers, PhaseBars() as bars:
        for each in Phase:
            started = time.monotonic()
            _run_one(repository, recovery, each, settings, workers, bars)
            seconds[str(each)] = round(time.monotonic() - started, 3)
    return seconds


def _run_one(repository: Any, recovery: str, phase: Any, settings: Any, workers: Any, bars: Any) -> Any:
    from cdr_core.phases.driver import run_phase, stored_result
    from cdr_core.phases.main import own_runner

    attempt = repository.begin_attempt(recovery, phase, own_runner(str(phase)))
    if attempt is None:
        return stored_result(repository, recovery, phase)
    return run_phase(repository, recovery, phase, attempt.epoch, settings, workers, bars)


def _summary(repository: Any, recovery: str, seconds: dict[str, float]) -> dict[str, Any]:
    from cdr_core.metadata import Phase
    from cdr_core.phases.driver import stored_result

    result = stored_result(repository, recovery, Phase.COMMIT)
    return {
        "recovery": recovery,
        "state": str(repository.recovery(recovery).state),
        "verdict": result["verdict"],
        "receipt": result["receipt"],
        "records": result["records"],
        "bytes": result["bytes"],
        "seconds": seconds,
        "output": result["location"],
    }


def _as_text(summary: dict[str, Any]) -> str:
    total = sum(summary["seconds"].values())
    return (
        f"{summary['recovery']}: {summary['state']}, {summary['verdict']}: {summary['records']:,} records "
        f"({summary['bytes']:,} bytes) in {total:.1f} s\n"
        f"  output   {summary['output']}\n  receipt  {summary['receipt']}"
    )


def _say(as_json: bool, value: dict[str, Any], text: str) -> None:
    if as_json:
        print_json(value)
    else:
        typer.echo(text)
