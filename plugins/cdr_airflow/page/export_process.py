"""``python -m cdr_airflow.page.export_process RECOVERY NUMBER DIRECTORY``: one export, in a process of its own.

The api-server loads neither Arrow nor the kernels, and an export that runs out of memory does not end it. Prints the
written export as JSON; a failure is one sentence and an exit code, as everywhere in cdr.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from cdr_core.errors import CdrError, JobFailed, from_exit_code

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Written:
    """See :class:`cdr_core.checkpoint_target.export.Exported`, which this process does not load."""

    directory: str
    records: int
    bytes: int


def export_in_child(recovery: str, number: int, directory: str) -> Written:
    """Start the process, wait for its end, and return its result; a failure is raised as the error it stands for."""
    from cdr_airflow.recoveries import driver_environment

    done = subprocess.run(
        [sys.executable, "-m", "cdr_airflow.page.export_process", recovery, str(number), directory],
        env=driver_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stderr.strip().splitlines()
    if done.returncode == JobFailed.exit_code and not (lines and lines[-1].startswith("cdr: ")):
        log.error("an export ended with status %s:\n%s", done.returncode, done.stderr[-20_000:])
        raise JobFailed("the export failed without a message", hint="look into the api-server's log")
    if done.returncode != 0:
        raise from_exit_code(done.returncode, lines[-1].removeprefix("cdr: ") if lines else "the export was killed")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Written(str(answer["directory"]), int(answer["records"]), int(answer["bytes"]))


def main(arguments: list[str]) -> int:
    from cdr_core import settings
    from cdr_core.checkpoint_target.export import export_checkpoint
    from cdr_core.metadata import Repository

    recovery, number, directory = arguments
    try:
        with Repository.open(settings.load().database_url) as repository:
            exported = export_checkpoint(repository, recovery, int(number), directory)
    except CdrError as error:
        print(f"cdr: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps({"directory": exported.directory, "records": exported.records, "bytes": exported.bytes}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
