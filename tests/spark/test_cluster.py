"""A recovery on a real standalone cluster: two workers that share no directory with the driver or with each other.

The workspace, the source and the target are on S3. The workers have no database: its address leads nowhere there.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdr_core import settings as settings_module
from cdr_core.drain.snapshots import Snapshots, newest_of
from cdr_core.metadata import Phase, PhaseState, RecoveryCheckpointState, Repository, upgrade
from cdr_core.storage.s3 import S3Storage
from cdr_core.sweep import sweep
from tests.support.bucket import Bucket
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.cluster import OWN, Cluster, command, running_cluster
from tests.support.comparing import compare
from tests.support.s3 import SECRET_KEY

CDR = [sys.executable, "-m", "cdr_core.cli.main"]
NOWHERE = "postgresql+psycopg://nobody@127.0.0.1:1/none"
FAULTS = f"drain.page=sleep:0.15,spill.shipped=once:{OWN}/killed:kill"
"""A drain long enough to be cut, and on each worker a task that dies while it spills."""
COMPLETE = {RecoveryCheckpointState.COMPLETED, RecoveryCheckpointState.EXPIRED}


@pytest.fixture(scope="module")
def cluster(_s3: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    environment = {**_s3.environment, "CDR_DATABASE_URL": NOWHERE, "CDR_FAULTS": FAULTS}
    with running_cluster(tmp_path_factory.mktemp("cluster"), environment) as running:
        yield running


class Recovery:
    """``cdr recover`` in a process of its own, and its database."""

    def __init__(self, bucket: Bucket, checkpoint: FixtureCheckpoint, home: Path, cluster: str) -> None:
        self.source, self.workspace, self.target = bucket.upload(checkpoint.path), bucket.uri(), bucket.uri()
        self.source_bytes = sum(path.stat().st_size for path in checkpoint.path.iterdir())
        url = f"sqlite:///{home}/cdr.db"
        home.mkdir(exist_ok=True)
        upgrade(url)
        self.repository = Repository.open(url)
        self.environment = {
            **os.environ,
            "CDR_SPARK": cluster,
            "CDR_WORKSPACE": self.workspace,
            "CDR_PAGE_SIZE": "4KiB",
            "CDR_MEMORY_BUDGET": "64KiB",
            "CDR_SEGMENT_SIZE": "8KiB",
        }
        arguments = [self.source, "--spec", str(checkpoint.spec), "--parallelism", "3"]
        arguments += ["--to", f"parquet:{self.target}", "--checkpoint-interval", "1s", "--json"]
        self.process = subprocess.Popen(
            [*CDR, "recover", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )

    @property
    def id(self) -> str:
        return self.repository.recoveries()[0].id

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 240
        while not condition():
            assert self.process.poll() is None, f"ended before {what}: {self.process.communicate()[1][-3000:]}"
            assert time.monotonic() < deadline, f"waited too long for {what}"
            time.sleep(0.2)

    def cut(self) -> set[str]:
        """Units that run and have all been cut by their tasks; empty while one of them has not."""
        if not self.repository.recoveries():
            return set()
        drain = next(row for row in self.repository.phases(self.id) if row.name is Phase.DRAIN)
        if drain.state is not PhaseState.RUNNING:
            return set()
        directory = f"{self.workspace}/{self.id}/e{self.repository.recovery(self.id).epoch}/drain"
        newest = newest_of(Snapshots(directory).listed())
        running = newest.keys() - {unit.unit for unit in self.repository.units(self.id, Phase.DRAIN)}
        # By the first one a task takes its subtask over; the next one stands behind a file.
        return set(running) if all(newest[unit] > 1 for unit in running) else set()

    def completed(self) -> int:
        """Complete recovery checkpoints, the drain's end among them."""
        return sum(row.state in COMPLETE for row in self.repository.checkpoints(self.id))

    def summary(self) -> dict[str, Any]:
        out, err = self.process.communicate(timeout=280)
        assert self.process.returncode == 0, err[-3000:]
        value: dict[str, Any] = json.loads(out.splitlines()[-1])
        return value

    def rows(self) -> list[dict[str, Any]]:
        """What a reader of the table sees."""
        storage = S3Storage()
        manifest = json.loads(storage.read(storage.list(f"{self.target}/_cdr")[-1]))
        files = [storage.read(f"{self.target}/{file['path']}") for file in manifest["files"]]
        return [row for file in files for row in pq.read_table(pa.BufferReader(file)).to_pylist()]

    def drained(self) -> dict[int, dict[str, Any]]:
        """Results of the drain by subtask, with the records of the whole subtask."""
        units = self.repository.units(self.id, Phase.DRAIN)
        return {int(unit.result["subtask"]): {**unit.result, "records": unit.records} for unit in units}


@pytest.fixture
def recovery(
    bucket: Bucket, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, cluster: Cluster
) -> Iterator[Recovery]:
    running = Recovery(bucket, fixture_checkpoint("a_p3_thr0", 2), tmp_path / ".cdr", cluster.url)
    yield running
    running.process.kill()
    running.process.wait()
    running.repository.close()


@pytest.mark.timeout(600)
def test_a_lost_executor_costs_only_its_own_subtasks(
    recovery: Recovery, cluster: Cluster, fixture_checkpoint: FixtureCheckpoints
) -> None:
    """Killed while it drains: its subtask goes on from its last cut elsewhere, nobody else's is done again. Tasks that
    died while they spilled left files on S3, which are swept when the drain begins.
    """
    recovery.wait_until(lambda: len(recovery.cut()) == 2, "a cut of both subtasks that run")
    sets = {part for uri, _ in S3Storage().walk(recovery.workspace) for part in uri.split("/") if part[:4] == "set-"}
    if cluster.hidden:
        assert any((cluster.own(number) / "killed").exists() for number in (0, 1)), "a task died while it spilled"
    assert len(sets) == 3, "what it left is gone"
    executors = cluster.executors()
    assert len(executors) == 2
    lines = [" ".join(command(process)) for process in psutil.process_iter()]
    executors[0].send_signal(signal.SIGKILL)
    summary = recovery.summary()
    assert (summary["state"], summary["verdict"], summary["records"]) == ("DONE", "balanced", 1878)
    compare(recovery.rows(), fixture_checkpoint("a_p3_thr0", 2), 3)
    results = recovery.drained()
    assert set(results) == {0, 1, 2}
    again = [result for result in results.values() if result["resumed_from"] != "start"]
    assert len(again) == 1, [result["resumed_from"] for result in results.values()]
    assert recovery.completed() >= 2
    assert 0 < again[0]["records_here"] < again[0]["records"]
    written = [log.read_text() for log in cluster.folder.glob("*.log")] + [json.dumps(_receipt(recovery)), *lines]
    assert not any(SECRET_KEY in text for text in written)
    _only_files_that_are_swept_were_left(recovery)
    _nothing_was_shared(recovery, cluster)


@pytest.mark.timeout(600)
@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_executors_lost_at_any_moment_change_nothing(
    recovery: Recovery, cluster: Cluster, fixture_checkpoint: FixtureCheckpoints, seed: int
) -> None:
    chance = random.Random(seed)
    recovery.wait_until(lambda: len(cluster.executors()) == 2, "executors")
    for _ in range(2):
        time.sleep(chance.uniform(0, 12))
        for executor in chance.sample(cluster.executors(), 1):
            executor.send_signal(signal.SIGKILL)
    summary = recovery.summary()
    assert (summary["verdict"], summary["records"]) == ("balanced", 1878)
    compare(recovery.rows(), fixture_checkpoint("a_p3_thr0", 2), 3)
    _only_files_that_are_swept_were_left(recovery)


def _only_files_that_are_swept_were_left(recovery: Recovery) -> None:
    """Of attempts that died nothing is named by a row, and a sweep leaves the plan, the receipt and the output."""
    published = {uri for uri, _ in S3Storage().walk(recovery.target)}
    swept = sweep(recovery.repository, settings_module.load(recovery.environment))
    assert all(leftover.removed for leftover in swept.leftovers)
    left = {uri.rpartition("/")[2] for uri, _ in S3Storage().walk(recovery.workspace)}
    assert left == {"ledger.parquet", "plan.json", "receipt.json"}
    manifest = json.loads(S3Storage().read(S3Storage().list(f"{recovery.target}/_cdr")[-1]))
    named = {f"{recovery.target}/{file['path']}" for file in manifest["files"]}
    data = {uri for uri, _ in S3Storage().walk(f"{recovery.target}/data")}
    assert named == data <= published


def _receipt(recovery: Recovery) -> dict[str, Any]:
    receipt = recovery.repository.receipt(recovery.id)
    assert receipt is not None
    return dict(receipt)


def _nothing_was_shared(recovery: Recovery, cluster: Cluster) -> None:
    """No database and nothing of the workspace was made on a worker, and it saw nothing of the driver's."""
    assert recovery.repository.recovery(recovery.id).host_id is None
    assert _receipt(recovery)["run"]["fetched_bytes"] <= 2 * recovery.source_bytes
    if not cluster.hidden:
        pytest.skip("everything but the namespaces was tested: they need root and unshare")
    for number in (0, 1):
        own = cluster.own(number)
        assert own.is_dir()
        assert list((own / "home").rglob("*.db")) == []
        assert not cluster.seen_by(number, Path(recovery.environment["CDR_HOME"])).exists()
        assert _gone(own / "local"), "Spark removes an executor's directories, and with them what it had on its way"


def _gone(directory: Path) -> bool:
    """Whether nothing is left in a directory, some seconds after its application ended at the latest."""
    deadline = time.monotonic() + 20
    while list(directory.rglob("cdr-*")) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not list(directory.rglob("cdr-*"))
