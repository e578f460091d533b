"""A plan's queries on the recovered rows, run by Spark and unable to change anything.

Each is put into the parentheses of a subquery, where Spark's grammar takes a query and nothing else: no INSERT, no DDL,
no second statement. Functions that leave SQL (scripts, Java methods) are refused by name. The plan's author is trusted
with reading; the form of a drill offers no SQL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from cdr_core.drill import resource_limits
from cdr_core.drill.verdict import CheckResult
from cdr_core.errors import CdrError, Refused
from cdr_core.metadata import Expect, Query
from cdr_core.settings import Settings
from cdr_core.spark.server import ServerSpec, ensure_server, stop_server
from cdr_core.spark.session import open_session
from cdr_core.storage import is_local

if TYPE_CHECKING:
    from collections.abc import Iterator

VIEW = "recovered"
SHOWN = 3
"""Rows that are fetched: enough to tell none from some, whatever the query answers."""

_LEAVES_SQL = re.compile(r"\b(transform\s*\(.*\busing\b|reflect\s*\(|java_method\s*\(|try_reflect\s*\()", re.I | re.S)

Answer = tuple[CheckResult, str]


def run_queries(queries: Sequence[Query], files: Sequence[str], drill_id: str, settings: Settings) -> dict[str, Answer]:
    """Each query's result and sentence by its name; an error of Spark as a whole is raised."""
    if not files:
        nothing = (CheckResult.NOT_RUN, "No record was in flight, so there is no row to query.")
        return {query.name: nothing for query in queries}
    if not all(is_local(file) for file in files):
        raise Refused(
            "the embedded Spark cannot read a drill's rows on s3://", hint="set CDR_DRILL_SCRATCH to a path for queries"
        )
    with _session(drill_id, settings) as session:
        session.read.parquet(*files).createOrReplaceTempView(VIEW)
        return {query.name: _ask(session, query) for query in queries}


def as_subquery(text: str) -> str:
    """The query where it can only be a query; the line break keeps a comment at its end from hiding the rest."""
    if _LEAVES_SQL.search(text):
        raise Refused("the query calls something outside of SQL", hint="leave out TRANSFORM, reflect and java_method")
    return f"SELECT * FROM (\n{text.strip().rstrip(';')}\n) AS answer LIMIT {SHOWN}"


def _ask(session: Any, query: Query) -> Answer:
    try:
        rows = session.sql(as_subquery(query.text)).collect()
    except CdrError as error:
        return CheckResult.NOT_RUN, str(error)
    except Exception as error:
        # Spark's own words: an unknown column, a mistake in the grammar. The first line says it.
        return CheckResult.NOT_RUN, f"Spark cannot answer it: {' '.join(str(error).split())[:300]}"
    return judge_rows([tuple(row) for row in rows], query.expect)


def judge_rows(rows: Sequence[tuple[Any, ...]], expect: Expect) -> Answer:
    """Whether an answer, of which at most ``SHOWN`` rows were fetched, is the expected one."""
    if expect is Expect.NO_ROWS:
        if not rows:
            return CheckResult.PASSED, "It returned no rows."
        count = f"{len(rows)}" if len(rows) < SHOWN else f"{SHOWN} or more"
        return CheckResult.FAILED, f"It returned {count} rows where none were expected."
    if len(rows) == 1 and len(rows[0]) == 1 and rows[0][0] is True:
        return CheckResult.PASSED, "It returned true."
    return CheckResult.FAILED, "It did not return one row with one true value."


def _session(drill_id: str, settings: Settings) -> AbstractContextManager[Any]:
    mine = resource_limits.bounded(settings)
    if mine.spark != "connect":
        return open_session(mine.spark, home=mine.home)
    return _embedded(drill_id, mine)


@contextmanager
def _embedded(drill_id: str, settings: Settings) -> Iterator[Any]:
    """A server of the drill's own: that of its recovery ended with the commit."""
    directory = settings.home / "spark" / drill_id
    spec = ServerSpec(
        directory=directory, home=settings.home, cores=settings.spark_cores, idle_seconds=settings.spark_idle
    )
    handle = ensure_server(spec)
    try:
        with open_session("connect", home=settings.home, handle=handle) as session:
            yield session
    finally:
        stop_server(handle)
