"""A checkpoint on S3 recovered by ``cdr recover`` on a real Spark: read by its workers where it lies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.support import inline, output
from tests.support.bucket import Bucket
from tests.support.checkpoints import FixtureCheckpoints

CDR = [sys.executable, "-m", "cdr_core.cli.main"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_recovered_from_s3_on_spark_it_is_the_same_as_from_a_disk(
    bucket: Bucket, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, warm_home: Path
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    uri = bucket.upload(checkpoint.path)
    arguments = ["--spec", str(checkpoint.spec), "--parallelism", "2", "--to", f"parquet:{tmp_path}/there", "--json"]
    done = subprocess.run(
        [*CDR, "recover", uri, *arguments], capture_output=True, text=True, env=os.environ, check=False, timeout=400
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["state"], summary["verdict"], summary["records"]) == ("DONE", "balanced", 1878)
    receipt = json.loads(Path(summary["receipt"]).read_text())
    files = [path.stat().st_size for path in checkpoint.path.iterdir() if path.name != "_metadata"]
    assert sum(files) // 2 < receipt["run"]["fetched_bytes"] <= 2 * sum(files)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path}/here")
    inline.run_all(*inline.start(request))
    place = ("gate", "up", "down", "pos")
    there, here = (
        sorted(output.rows(tmp_path / name), key=lambda row: tuple(row[column] for column in place))
        for name in ("there", "here")
    )
    assert there == here
