"""A plan's queries on recovered rows, by a real Spark: they can look and nothing else."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdr_core import settings as settings_module
from cdr_core.drill.queries import as_subquery, judge_rows, run_queries
from cdr_core.drill.verdict import CheckResult
from cdr_core.errors import Refused
from cdr_core.metadata import Expect, Query

HARMFUL = [
    "DROP VIEW recovered",
    "CREATE TABLE mine USING parquet AS SELECT * FROM recovered",
    "INSERT OVERWRITE DIRECTORY '{out}' USING parquet SELECT * FROM recovered",
    "WITH x AS (SELECT 1 AS a) INSERT OVERWRITE DIRECTORY '{out}' USING parquet SELECT * FROM x",
    "FROM recovered INSERT OVERWRITE DIRECTORY '{out}' USING parquet SELECT *",
    "SELECT 1) AS a; INSERT OVERWRITE DIRECTORY '{out}' USING parquet SELECT (1",
    "SELECT 1 -- ) AS answer; DROP VIEW recovered",
    "SET spark.sql.ansi.enabled = false",
    "SELECT java_method('java.lang.System', 'getProperty', 'user.home')",
    "SELECT TRANSFORM (n) USING 'touch {out}' FROM recovered",
]


def test_queries_answer_and_can_change_nothing(tmp_path: Path, warm_home: Path) -> None:
    file, out = tmp_path / "rows.parquet", tmp_path / "out"
    pq.write_table(pa.table({"n": [1, 2, 3]}), file)
    queries = {
        "none": Query("none", "SELECT * FROM recovered WHERE n < 0;", Expect.NO_ROWS),
        "some": Query("some", "SELECT * FROM recovered WHERE n > 1 -- two", Expect.NO_ROWS),
        "many": Query("many", "SELECT a.n FROM recovered a, recovered b", Expect.NO_ROWS),
        "true": Query("true", "WITH s AS (SELECT sum(n) AS n FROM recovered) SELECT n = 6 FROM s", Expect.TRUE),
        "false": Query("false", "SELECT count(*) = 4 FROM recovered", Expect.TRUE),
        "typo": Query("typo", "SELECT m FROM recovered", Expect.NO_ROWS),
        **{f"harm {n}": Query(f"harm {n}", text.format(out=out), Expect.TRUE) for n, text in enumerate(HARMFUL)},
        "last": Query("last", "SELECT count(*) = 3 FROM recovered", Expect.TRUE),
    }
    settings = settings_module.load()
    answers = run_queries(tuple(queries.values()), [str(file)], "d-0123456789", settings)
    results = {name: answer[0] for name, answer in answers.items()}
    assert results["none"] is results["true"] is results["last"] is CheckResult.PASSED, answers
    assert results["some"] is results["many"] is results["false"] is CheckResult.FAILED, answers
    assert "2 rows" in answers["some"][1]
    assert "3 or more rows" in answers["many"][1]
    assert results["typo"] is CheckResult.NOT_RUN
    assert "`m`" in answers["typo"][1]
    harmed = {name: results[name] for name in results if name.startswith("harm") and name != "harm 6"}
    assert set(harmed.values()) == {CheckResult.NOT_RUN}, answers
    # Its comment swallows the harm, and what is left is a query.
    assert results["harm 6"] is CheckResult.FAILED
    assert not out.exists()
    assert not list(settings.home.rglob("spark-warehouse"))


@pytest.mark.parametrize("text", ["SELECT reflect('a', 'b')", "select TRANSFORM(a)\nUSING 'x' FROM recovered"])
def test_what_leaves_sql_is_refused_before_spark_sees_it(text: str) -> None:
    with pytest.raises(Refused, match="outside of SQL"):
        as_subquery(text)


def test_one_true_value_is_exactly_that() -> None:
    assert judge_rows([(True,)], Expect.TRUE)[0] is CheckResult.PASSED
    for rows in ([], [(False,)], [(None,)], [(1,)], [(True,), (True,)], [(True, True)]):
        assert judge_rows(rows, Expect.TRUE)[0] is CheckResult.FAILED


def test_rows_that_spark_cannot_read_are_not_taken_for_none() -> None:
    query = Query("any", "SELECT 1", Expect.NO_ROWS)
    with pytest.raises(Refused, match="CDR_DRILL_SCRATCH"):
        run_queries((query,), ["s3://bucket/file"], "d-0123456789", settings_module.load())
    assert run_queries((query,), [], "d-0123456789", settings_module.load())["any"][0] is CheckResult.NOT_RUN
