"""A recovery on a classic session of its own: ``local[*,4]``, where a task that fails is tried again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cdr_core import settings as settings_module
from cdr_core.metadata import Phase, RecoveryCheckpointState, Repository
from cdr_core.spark.session import executor_environment
from cdr_core.sweep import sweep
from tests.support import output
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.comparing import compare

CDR = [sys.executable, "-m", "cdr_core.cli.main"]
COMPLETE = {RecoveryCheckpointState.COMPLETED, RecoveryCheckpointState.EXPIRED}


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_on_a_classic_session_checkpoints_complete_and_a_task_that_dies_goes_on_from_its_cut(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed attempt at a task leaves only files that are swept."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    died = tmp_path / "died"
    faults = f"drain.page=sleep:0.04,drain.prepared=once:{died}:kill"
    for name, value in {
        "SPARK": "local[*,4]", "PAGE_SIZE": "4KiB", "MEMORY_BUDGET": "64KiB", "SEGMENT_SIZE": "8KiB", "FAULTS": faults,
    }.items():  # fmt: skip
        monkeypatch.setenv(f"CDR_{name}", value)
    arguments = [str(checkpoint.path), "--spec", str(checkpoint.spec), "--parallelism", "2", "--json"]
    arguments += ["--to", f"parquet:{tmp_path}/out", "--checkpoint-interval", "200ms"]
    done = subprocess.run(
        [*CDR, "recover", *arguments], capture_output=True, text=True, env=os.environ, check=False, timeout=400
    )
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["state"], summary["verdict"], summary["records"]) == ("DONE", "balanced", 1878)
    assert died.exists()
    compare(output.rows(tmp_path / "out"), checkpoint, 2)
    settings = settings_module.load()
    with Repository.open(settings.database_url) as repository:
        rows = repository.checkpoints(summary["recovery"])
        assert len([row for row in rows if row.state in COMPLETE]) >= 2
        units = repository.units(summary["recovery"], Phase.DRAIN)
        again = [unit for unit in units if unit.result["resumed_from"] != "start"]
        assert len(again) == 1, "only the task that died"
        assert 0 < again[0].result["records_here"] < again[0].records
        sweep(repository, settings)
    left = {path.name for path in (settings.home / "workspace").rglob("*") if path.is_file()}
    assert left == {"ledger.parquet", "plan.json", "receipt.json"}


def test_executors_of_a_cluster_are_told_where_s3_is_and_no_credential(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark puts these on the command line of the driver's JVM."""
    home = Path(os.environ["CDR_HOME"])
    home.mkdir()
    (home / "cdr.toml").write_text('s3_endpoint = "http://s3.example:9000"')
    secrets = {"AWS_ACCESS_KEY_ID": "hidden-id", "AWS_SECRET_ACCESS_KEY": "hidden-key", "AWS_SESSION_TOKEN": "hidden"}
    told = executor_environment({**os.environ, **secrets, "CDR_DATABASE_URL": "hidden", "AWS_REGION": "eu-1"})
    assert told["spark.executorEnv.CDR_S3_ENDPOINT"] == "http://s3.example:9000"
    assert told["spark.executorEnv.AWS_REGION"] == "eu-1"
    assert "hidden" not in str(told)
    assert not any("DATABASE" in name for name in told)
