"""A recovery by Airflow's operator on a real standalone cluster, which its connections alone lead to.

It takes minutes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdr_core import settings
from cdr_core.metadata import Repository, upgrade
from tests.airflow.executing import execute
from tests.support.bucket import Bucket
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.cluster import running_cluster
from tests.support.s3 import ACCESS_KEY, SECRET_KEY

pytestmark = [pytest.mark.soak, pytest.mark.spark]


@pytest.mark.timeout(900)
def test_connections_lead_a_recovery_to_the_cluster_and_their_secret_stays_with_the_driver(
    bucket: Bucket, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    source, target, workspace = bucket.upload(checkpoint.path), bucket.uri(), bucket.uri()
    extra = {"region_name": "us-east-1", "endpoint_url": bucket.environment["CDR_S3_ENDPOINT"]}
    aws = {"conn_type": "aws", "login": ACCESS_KEY, "password": SECRET_KEY, "extra": extra}
    current = settings.load()
    current.home.mkdir(parents=True, exist_ok=True)
    upgrade(current.database_url)
    (tmp_path / "cluster").mkdir()
    with running_cluster(tmp_path / "cluster", bucket.environment) as cluster, capture_logs() as lines:
        host, _, port = cluster.url.rpartition(":")
        monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps({"conn_type": "spark", "host": host, "port": int(port)}))
        monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(aws))
        for name, value in {"SPARK_CONN": "cluster", "AWS_CONN": "store", "WORKSPACE": workspace}.items():
            monkeypatch.setenv(f"CDR_{name}", value)
        for name in bucket.environment:  # from here on only the connections know
            monkeypatch.delenv(name, raising=False)
        xcoms: dict[str, Any] = {}
        request = {"checkpoint": source, "spec": str(checkpoint.spec), "parallelism": "2", "to": f"parquet:{target}"}
        results = [execute("read", xcoms, request)]
        results += [execute(phase, xcoms) for phase in ("filter", "spill", "drain", "commit")]
        work = [file for file in (tmp_path / "cluster").rglob("*") if file.is_file()]
        assert not any(SECRET_KEY.encode() in file.read_bytes() for file in work)
    assert results[-1]["verdict"] == "balanced"
    assert xcoms["_link_SparkLink"].startswith("http://"), "the driver's own"
    with Repository.open(current.database_url) as repository:
        receipt = repository.receipt(xcoms["recovery"])
    assert SECRET_KEY not in str([lines, xcoms, results, receipt])
