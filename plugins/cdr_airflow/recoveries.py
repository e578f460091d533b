"""Calls of the operator into cdr_core: what-if, create or attach, take an epoch, read the publication.

Every import of cdr_core is inside a function: a DAG is parsed every few seconds, a task runs once.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cdr_core
from cdr_airflow.assets import Publication
from cdr_core.errors import CdrError, SpecRefused
from cdr_core.targets import Target


@dataclass(frozen=True, slots=True)
class TaskTry:
    """The try of a task of a run; a newer try fences every older one."""

    run: str
    task: str
    number: int


@dataclass(frozen=True, slots=True)
class Begun:
    """An attempt that may start its driver: it owns ``epoch`` until a newer attempt takes the next."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AlreadyDone:
    """The phase finished in an earlier attempt; its stored result is the answer and no epoch was taken."""

    result: dict[str, Any]


def checked_spec(request: Mapping[str, str]) -> dict[str, str]:
    """Return the request with its spec's text in place of the file's name; refused if it names code that may not run.

    A form must not be a way to import any module of this host. The checked text is the very text that is planned with
    and kept with the recovery, which every later phase and every executor uses.
    """
    from cdr_core import settings
    from cdr_core.planning.job_spec import examine_spec, read_spec

    text = read_spec(request["spec"])
    spec, _ = examine_spec(text)
    allowed = settings.load().owner_modules
    for exchange in spec.exchanges:
        if exchange.owner and not is_allowed(exchange.owner, allowed):
            raise SpecRefused(
                f"exchange {exchange.name}: owner function {exchange.owner} is not in a module that may be used "
                "through Airflow",
                hint="the operator of this Airflow can list its module in CDR_OWNER_MODULES",
            )
    return {**request, "spec": text}


def is_allowed(owner: str, modules: Iterable[str]) -> bool:
    """Return whether the module of ``module:function`` is one of these, or lies below one."""
    name = owner.partition(":")[0]
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def what_if(request: Mapping[str, str]) -> tuple[list[str], CdrError | None]:
    """Return the plan as ``cdr plan --estimate`` prints it, since records are Spark's to read, and the
    first refusal.
    """
    from cdr_core import api
    from cdr_core.inspection.what_if_text import text_of

    asked = (request["checkpoint"], request["spec"], request["parallelism"], request["to"])
    found = api.plan(*asked, exact=False, trust_key=is_on(request, "trust_key"), with_channels=False)
    return list(text_of(found.value)), next(iter(found.refusals), None)


def form_remedy(options: Sequence[str]) -> str:
    """Return helpful options of the command line, with the labels of the form; empty if there are none."""
    switches = {
        "--trust-key": "Trust the key",
        "--replace": "Start over",
        "--on-corrupt=quarantine": "On corrupt data: quarantine",
    }
    wanted = [switches[option] for option in options if option in switches]
    if not wanted:
        return ""
    page = " (also a button on the recovery's page)" if "Start over" in wanted else ""
    return f" In Airflow, trigger it again with {' and '.join(wanted)}{page}."


def is_on(request: Mapping[str, str], name: str) -> bool:
    """Return whether a switch of the form is on; templates turn it into text."""
    return request.get(name, "") == "True"


def create(request: Mapping[str, str]) -> str:
    """Return the recovery that the request names, made or attached to; raise a :class:`cdr_core.errors.CdrError`."""
    from cdr_core import settings
    from cdr_core.planning.drain_order import parse_order
    from cdr_core.recovery import recovery_request as requests

    requested = requests.RecoveryRequest(
        checkpoint=request["checkpoint"],
        spec=request["spec"],
        parallelism=request["parallelism"],
        to=request["to"],
        checkpoint_interval=request.get("checkpoint_interval", ""),
        on_corrupt=request.get("on_corrupt", "fail"),
        trust_key=is_on(request, "trust_key"),
        replace=request.get("replace", ""),
        drain_order=parse_order(request.get("drain_order", "")),
    )
    return requests.create(requested, settings.load())


def begin(recovery: str, phase: str, task_try: TaskTry) -> Begun | AlreadyDone:
    """Take the next epoch for this try, or learn that there is nothing left to do."""
    from cdr_core import settings
    from cdr_core.metadata import Phase, Repository, Runner
    from cdr_core.runtime.pin_file import begin as begin_attempt

    runner = Runner(task_try.run, task_try.task, task_try.number, socket.gethostname(), os.getpid())
    with Repository.open(settings.load().database_url) as repository:
        attempt = begin_attempt(repository, recovery, Phase(phase), runner)
        if attempt is not None:
            return Begun(attempt.epoch)
        stored = next(row for row in repository.phases(recovery) if row.name == phase)
        return AlreadyDone(dict(stored.result or {}))


def spark_ui(recovery: str, epoch: int | None = None) -> str:
    """Return the address of the Spark UI of the recovery's embedded server, or of this attempt's own driver; empty if
    there is none.

    The server serves every attempt; a driver on a cluster is of one attempt, and an older one's is gone.
    """
    from cdr_core import settings
    from cdr_core.metadata import Repository

    with Repository.open(settings.load().database_url) as repository:
        server = repository.recovery(recovery).server or {}
    if epoch is not None and server.get("epoch", epoch) != epoch:
        return ""
    return str(server.get("ui") or "")


def publication(recovery: str) -> Publication | None:
    """Return the publication of the commit log, after its clean-up; ``None`` before, and for ``none:``."""
    from cdr_core import settings
    from cdr_core.metadata import CommitState, Repository

    with Repository.open(settings.load().database_url) as repository:
        target = repository.recovery(recovery).target
        log = sorted(repository.commit_log(recovery), key=lambda entry: entry.commit_id)
    if not Target.parse(target).kind.keeps or not log or any(entry.state is not CommitState.DONE for entry in log):
        return None
    last = log[-1]
    return Publication(recovery, last.commit_id, target, last.location or "", last.proof_sha256)


def start_interrupt(recovery: str) -> subprocess.Popen[bytes] | None:
    """Stop the recovery's Spark jobs from a process of its own; ``None`` when it has no server.

    Not tied to the task: Airflow kills a task that takes five seconds to end, and the interruption must outlive that.
    It bounds itself.
    """
    from cdr_core import settings
    from cdr_core.metadata import Repository

    with Repository.open(settings.load().database_url) as repository:
        server = repository.recovery(recovery).server
    if not server or "directory" not in server:
        return None  # on a cluster, the job ends with its driver
    return subprocess.Popen(
        [sys.executable, "-m", "cdr_core.spark.interrupt", server["directory"]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=driver_environment(),
        start_new_session=True,
    )


def driver_environment() -> dict[str, str]:
    """Return the task's environment for a driver.

    Airflow's own variables are removed: they contain its secrets and connections, and a driver does not use its
    channels.
    """
    hidden = ("AIRFLOW_", "__AIRFLOW", "_AIRFLOW")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    library = str(Path(cdr_core.__file__).resolve().parent.parent)
    paths = [library, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    environment["PYTHONUNBUFFERED"] = "1"  # progress lines must not be buffered
    return environment
