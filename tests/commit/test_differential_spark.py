"""The differential's furthest corner on a real Spark: PostgreSQL, S3, checkpoints, published one by one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdr_core.metadata import upgrade
from tests.commit.differential import WATERMARK, expected, make_source, place
from tests.commit.targets import S3Target
from tests.support.bucket import Bucket
from tests.support.postgres import Postgres
from tests.support.written import SPEC


@pytest.mark.seed("004-01", "004-10")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_on_spark_with_postgresql_and_s3_rows_and_watermark_are_the_same(
    bucket: Bucket, postgres: Postgres, tmp_path: Path, warm_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator in the drain's driver publishes while Spark's tasks drain."""
    url = postgres.create()
    upgrade(url)
    for name, value in {
        "CDR_DATABASE_URL": url,
        "CDR_COMMIT": "per-checkpoint",
        "CDR_TABLE_RAW": "true",
        "CDR_PAGE_SIZE": "4KiB",
        "CDR_SEGMENT_SIZE": "1KiB",
        "CDR_MEMORY_BUDGET": "8KiB",
        "CDR_FAULTS": "drain.page=sleep:0.1",
    }.items():
        monkeypatch.setenv(name, value)
    source, spec, target = make_source(tmp_path / "chk-1"), tmp_path / "spec.yaml", S3Target(bucket)
    spec.write_text(SPEC.format(partitioner="rebalance"))
    arguments = [bucket.upload(Path(source)), "--spec", str(spec), "--parallelism", "slow=3,gen=2", "--to", target.name]
    done = cdr("recover", *arguments, "--checkpoint-interval", "200ms", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["state"], summary["verdict"]) == ("DONE", "balanced")
    rows = sorted(target.rows(), key=place)
    assert [(place(row), row["ts"], row["main"]["f0"], row["raw"]) for row in rows] == list(expected())
    assert target.properties()["cdr.watermark"] == WATERMARK
    assert target.commits() > 1, "published while it drained"
    receipt = json.loads(cdr("receipt", summary["recovery"], "--json").stdout)
    assert len(receipt["publications"]) == target.commits()


def cdr(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cdr_core.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False, timeout=280)
