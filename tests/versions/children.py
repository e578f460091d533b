"""What the recorder does in processes of their own, which may die."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from cdr_core import settings
from cdr_core.checkpoint_target.export import export_checkpoint
from cdr_core.drain import task
from cdr_core.drill.plan import parse_plan
from cdr_core.drill.run import by_this_process, run_drill
from cdr_core.metadata import Phase, Repository, upgrade
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.support import inline
from tests.versions.frozen import EXPORTED, HOME, SOURCE, SPEC
from tests.versions.series import SLOWLY, Series


def in_child(work: Callable[[], Any], environment: Mapping[str, str] | None = None) -> int:
    """Do the work in a process of its own; its exit status, -9 = killed."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 70
    try:
        os.environ.update({"CDR_HOME": str(HOME), **(environment or {})})
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def fault(step: str, slow: bool = False) -> dict[str, str]:
    return {"CDR_FAULTS": f"{step}=kill" + (f",{SLOWLY}" if slow else "")}


def create(series: Series) -> None:
    request = RecoveryRequest(str(SOURCE), str(SPEC), series.parallelism, series.to, **series.options)
    inline.start(request)[0].close()


def run_phase(series: Series, phase: Phase, recovery: str) -> None:
    task.LISTEN_SECONDS = 0.005
    now = settings.load()
    workers = inline.ThreadedWorkers() if series.threads and phase is Phase.DRAIN else inline.InlineWorkers()
    with Repository.open(now.database_url) as repository:
        inline.run(repository, recovery, phase, now, workers)


def export(recovery: str) -> None:
    with Repository.open(settings.load().database_url) as repository:
        number = repository.checkpoints(recovery)[-1].checkpoint_id
        export_checkpoint(repository, recovery, number, str(EXPORTED))


def drill() -> None:
    now = settings.load()
    now.home.mkdir(parents=True, exist_ok=True)
    upgrade(now.database_url)
    plan = parse_plan("nightly", {"spec": SPEC.read_text(), "checkpoints": str(SOURCE.parent), "parallelism": "2"})
    with Repository.open(now.database_url) as repository:
        run_drill(repository, now, plan, by_this_process(7), inline.InlineWorkers(), lambda _: None)
