"""What is looked at after a drill's recovery: the rows it published, and whether Flink takes what it wrote.

A check that cannot be carried out is NOT_RUN with the reason; it is never taken for passed.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow.parquet as pq

from cdr_core.commit.committable import PreparedFile
from cdr_core.commit.sinks import sink_for
from cdr_core.drill.queries import run_queries
from cdr_core.drill.verdict import FLINK_RESTORE, NO_FLINK, ROWS, SQL, VERIFY, Check, CheckResult
from cdr_core.errors import CdrError, Unreadable
from cdr_core.metadata import Drill
from cdr_core.settings import Settings
from cdr_core.storage import join, storage_for
from cdr_core.targets import Target

Receipt = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """A drill whose recovery is done, and what its checks look at."""

    drill: Drill
    receipt: Receipt
    settings: Settings

    @property
    def target(self) -> Target:
        return Target.parse(self.drill.args.target)


def look(drill: Drill, receipt: Receipt, settings: Settings) -> tuple[Check, ...]:
    """All checks that the drill's plan asks for, in the order of :class:`DrillChecks`."""
    rehearsed = Rehearsed(drill, receipt, settings)
    return tuple(check for kind in drill.args.checks.wanted for check in _guarded(kind, rehearsed))


def _guarded(kind: str, rehearsed: Rehearsed) -> list[Check]:
    try:
        return LOOKS[kind](rehearsed)
    except Exception as error:
        return [Check(kind, CheckResult.NOT_RUN, _reason(error))]


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, CdrError) else f"{type(error).__name__}: {error}"


def _rows(rehearsed: Rehearsed) -> list[Check]:
    """Rows counted in the footers of the files that the target's highest manifest lists."""
    target = rehearsed.target
    if not target.kind.has_manifests:
        return []
    sink, found = sink_for(target), 0
    for file in published_files(target):
        with sink.open_file(file) as source:
            found += pq.ParquetFile(source).metadata.num_rows
    expected = int(rehearsed.receipt["records"]["source"])
    if found != expected:
        return [Check(ROWS, CheckResult.FAILED, f"{found:,} rows were recovered, {expected:,} records were in flight.")]
    return [Check(ROWS, CheckResult.PASSED, f"{found:,} rows were recovered, as many as records were in flight.")]


def published_files(target: Target) -> Iterator[PreparedFile]:
    """What a reader of a ``parquet:`` target sees; a target without a manifest is an error, not an empty table."""
    directory = target.address
    manifests = storage_for(directory).list(join(directory, "_cdr"))
    numbered = {
        int(uri.rpartition("manifest-")[2].removesuffix(".json")): uri for uri in manifests if "manifest-" in uri
    }
    if not numbered:
        raise Unreadable(f"nothing was published in {directory}", hint="look at the recovery's commit")
    uri = numbered[max(numbered)]
    for file in json.loads(storage_for(uri).read(uri))["files"]:
        yield msgspec.convert(file, PreparedFile)


def _verify(rehearsed: Rehearsed) -> list[Check]:
    from cdr_core.verify.claims import read_claims
    from cdr_core.verify.verify import Request, verify

    receipt = rehearsed.receipt
    recovery = receipt["recovery"]
    claims = read_claims(json.dumps(receipt).encode(), f"the receipt of {recovery['id']}")
    request = Request(recovery["source"], recovery["target"], recovery["spec"], recovery["parallelism"], claims)
    report = verify(request)
    if report.exit_code == 0:
        return [Check(VERIFY, CheckResult.PASSED, "The second reader finds the same records in source and output.")]
    return [Check(VERIFY, CheckResult.FAILED, f"The second reader finds the result {report.verdict}.")]


def _sql(rehearsed: Rehearsed) -> list[Check]:
    queries, target = rehearsed.drill.args.checks.sql, rehearsed.target
    names = {query.name: f"{SQL}: {query.name}" for query in queries}
    try:
        files = [join(target.address, file.path) for file in published_files(target) if file.records]
        answers = run_queries(queries, files, rehearsed.drill.id, rehearsed.settings)
    except Exception as error:
        return [Check(names[query.name], CheckResult.NOT_RUN, _reason(error), SQL) for query in queries]
    return [Check(names[query.name], *answers[query.name], kind=SQL) for query in queries]


def _flink_restore(rehearsed: Rehearsed) -> list[Check]:
    if not rehearsed.settings.drill_flink:
        return [Check(FLINK_RESTORE, CheckResult.NOT_CONFIGURED, NO_FLINK)]
    return [_restored(shlex.split(rehearsed.settings.drill_flink), rehearsed)]


def _restored(command: list[str], rehearsed: Rehearsed) -> Check:
    command, limit = [*command, rehearsed.target.address], rehearsed.drill.args.give_up_s
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Check(FLINK_RESTORE, CheckResult.FAILED, f"{command[0]} had not ended after {limit or 0:g} s.")
    except OSError as error:
        return Check(FLINK_RESTORE, CheckResult.NOT_RUN, f"{command[0]} could not be started: {error.strerror}.")
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    for line in lines:
        print(f"flink: {line}", file=sys.stderr)
    last = f": {lines[-1].strip()[:500]}" if lines else ""
    result = CheckResult.PASSED if done.returncode == 0 else CheckResult.FAILED
    return Check(FLINK_RESTORE, result, f"{command[0]} ended with {done.returncode}{last}")


LOOKS: Mapping[str, Callable[[Rehearsed], list[Check]]] = {
    ROWS: _rows,
    VERIFY: _verify,
    SQL: _sql,
    FLINK_RESTORE: _flink_restore,
}
"""The function of each kind of check."""
