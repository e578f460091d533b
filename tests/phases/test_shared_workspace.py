"""A workspace on S3, as executors that share no host need it: the same result, and nothing of it on a local disk."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cdr_core import settings as settings_module
from cdr_core.checkpoint_target.export import export_checkpoint
from cdr_core.drain import task
from cdr_core.errors import Refused, SettingsRefused
from cdr_core.metadata import Phase, RecoveryCheckpointState
from cdr_core.recovery.recovery_request import RecoveryRequest, check
from cdr_core.runtime.driver import PhaseRun
from cdr_core.runtime.unit_runner import run_unit
from cdr_core.storage.s3 import S3Storage
from cdr_core.sweep import sweep
from tests.support import inline, output
from tests.support.bucket import Bucket
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.comparing import compare
from tests.support.damage import BAD, Damaged, in_length, some_record


@pytest.fixture
def workspace(bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """An S3 workspace, and a scratch directory that is looked at afterwards."""
    uri = bucket.uri()
    monkeypatch.setenv("CDR_WORKSPACE", uri)
    monkeypatch.setenv("CDR_SCRATCH", str(tmp_path / "scratch"))
    return uri


def source_bytes(bucket: Bucket, uri: str) -> int:
    """Bytes of the checkpoint's channel-state files."""
    return sum(size for found, size in S3Storage().walk(uri) if not found.endswith("_metadata"))


@pytest.mark.parametrize(("name", "number"), [("a_p3_thr0", 2), ("a_p3_thr1mb", 2)])
@pytest.mark.parametrize("parallelism", [2, 5])
def test_recovered_through_a_workspace_on_s3_it_is_what_flink_read(
    bucket: Bucket, workspace: str, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, name: str, number: int, parallelism: int,
) -> None:  # fmt: skip
    """Every record once, in order, at its owner; of the source no byte is fetched more than twice, also where channels
    have many splits.
    """
    monkeypatch.setenv("CDR_SPLIT_SIZE", "4KiB")
    checkpoint = fixture_checkpoint(name, number)
    uri = bucket.upload(checkpoint.path)
    request = RecoveryRequest(uri, str(checkpoint.spec), str(parallelism), f"parquet:{tmp_path}/out")
    repository, recovery, settings = inline.start(request)
    assert inline.run_all(repository, recovery, settings)["verdict"] == "balanced"
    compare(output.rows(tmp_path / "out"), checkpoint, parallelism)
    receipt = repository.receipt(recovery)
    assert receipt is not None
    size = source_bytes(bucket, uri)
    assert receipt["run"]["fetched_bytes"] <= 2 * size
    assert receipt["run"]["fetched_bytes"] > size or size == 0
    assert repository.recovery(recovery).host_id is None
    assert not (settings.home / "workspace").exists()
    assert list((tmp_path / "scratch").rglob("*")) == []


def test_what_a_killed_task_left_on_s3_is_swept_and_nothing_else(
    bucket: Bucket,
    workspace: str,
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next attempt removes the sets that no row names; at the end the plan and the receipt are left."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    stranger = f"{workspace}/somebody-elses/e1/file"
    bucket.put(stranger, b"1")
    target = bucket.uri()
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{target}")
    repository, recovery, settings = inline.start(request)
    for phase in (Phase.READ, Phase.FILTER):
        inline.run(repository, recovery, phase, settings)
    pid = os.fork()
    if pid == 0:
        os.environ["CDR_FAULTS"] = "spill.shipped=kill"
        os._exit(inline.main(["spill", recovery]))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
    dead = f"{workspace}/{recovery}/e{repository.recovery(recovery).epoch}/spill/"
    orphans = [uri for uri, _ in S3Storage().walk(dead) if "/set-" in uri]
    assert orphans
    others = {uri for uri, _ in S3Storage().walk(workspace)} - set(orphans)
    seen = sweep(repository, settings, dry_run=True)
    assert not any(leftover.removed for leftover in seen.leftovers)
    for phase in (Phase.SPILL, Phase.DRAIN):
        inline.run(repository, recovery, phase, settings)
        now = {uri for uri, _ in S3Storage().walk(workspace)}
        assert not now & set(orphans)
        needed = ("/results/", "/selection-", "/carried-", "/plan.json")
        assert {uri for uri in others if any(part in uri for part in needed)} <= now
    unpublished = f"{target}/data/{recovery}/e1-00000-nobody-0-0.parquet"
    bucket.put(unpublished, b"1")
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    assert not [uri for uri, _ in S3Storage().walk(workspace) if "/set-" in uri and "manifest" not in uri]
    published = {uri for uri, _ in S3Storage().walk(target)} - {unpublished}
    report = sweep(repository, settings)
    left = {uri.rpartition("/")[2] for uri, _ in S3Storage().walk(f"{workspace}/{recovery}")}
    assert left == {"ledger.parquet", "plan.json", "receipt.json"}
    assert {uri for uri, _ in S3Storage().walk(target)} == published
    assert bucket.get(stranger) == b"1"
    assert f"{workspace}/somebody-elses" in {each.path for each in report.left}


@pytest.mark.parametrize("spelled_by", ["setting", "row"])
def test_a_workspace_by_another_name_of_s3_is_released_and_swept(
    workspace: str,
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spelled_by: str,
) -> None:
    """Also of a recovery that the version before created, whose rows say s3a://."""
    spelled = workspace.replace("s3://", "s3a://")
    monkeypatch.setenv("CDR_WORKSPACE", spelled)
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path}/out")
    repository, recovery, settings = inline.start(request)
    assert repository.recovery(recovery).workspace == f"{workspace}/{recovery}"
    if spelled_by == "row":
        with sqlite3.connect(settings.home / "cdr.db") as database:
            database.execute("UPDATE recovery SET workspace = ?", (f"{spelled}/{recovery}",))
    assert inline.run_all(repository, recovery, settings)["verdict"] == "balanced"
    assert not [uri for uri, _ in S3Storage().walk(workspace) if "/set-" in uri and "manifest" not in uri]
    sweep(repository, settings)
    left = {uri.rpartition("/")[2] for uri, _ in S3Storage().walk(f"{workspace}/{recovery}")}
    assert left == {"ledger.parquet", "plan.json", "receipt.json"}


def test_the_quarantine_is_on_s3_as_well_and_outlives_the_recovery(
    bucket: Bucket, workspace: str, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    damaged = Damaged(fixture_checkpoint("a_p3_thr0", 2), tmp_path / "damaged")
    in_length(damaged, damaged.frames(BAD)[some_record(damaged)])
    uri = bucket.upload(damaged.folder)
    request = RecoveryRequest(uri, str(damaged.original.spec), "2", f"parquet:{tmp_path}/out", on_corrupt="quarantine")
    repository, recovery, settings = inline.start(request)
    assert inline.run_all(repository, recovery, settings)["verdict"] == "partial"
    receipt = repository.receipt(recovery)
    assert receipt is not None
    (aside,) = receipt["run"]["quarantine"]
    sweep(repository, settings)
    assert aside["file"].startswith(f"{workspace}/{recovery}/")
    data = bucket.get(aside["file"])
    assert (len(data), hashlib.sha256(data).hexdigest()) == (aside["bytes"], aside["sha256"])
    assert len(output.rows(tmp_path / "out")) < 1878


def test_checkpoints_complete_and_a_dead_drain_goes_on_from_them(
    workspace: str, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The snapshots and the exported checkpoint are on S3 too."""
    for name, value in {"PAGE_SIZE": "4KiB", "MEMORY_BUDGET": "64KiB", "SEGMENT_SIZE": "8KiB"}.items():
        monkeypatch.setenv(f"CDR_{name}", value)
    monkeypatch.setenv("CDR_FAULTS", "drain.page=sleep:0.03")
    monkeypatch.setattr(task, "LISTEN_SECONDS_AFAR", 0.05)
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path}/out", "100ms")
    repository, recovery, settings = inline.start(request)
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL):
        inline.run(repository, recovery, phase, settings)
    pid = os.fork()
    if pid == 0:
        os.environ["CDR_FAULTS"] += ",drain.before-result=kill"
        os._exit(inline.main(["drain", recovery], inline.ThreadedWorkers()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
    complete = [row for row in repository.checkpoints(recovery) if row.state is RecoveryCheckpointState.COMPLETED]
    assert complete
    exported = export_checkpoint(repository, recovery, complete[-1].checkpoint_id, f"{workspace}-exported")
    assert exported.records == 1878
    inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
    results = [unit.result for unit in repository.units(recovery, Phase.DRAIN)]
    assert all(result["resumed_from"] != "start" for result in results)
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    compare(output.rows(tmp_path / "out"), checkpoint, 2)
    monkeypatch.setenv("CDR_FAULTS", "")
    again = RecoveryRequest(exported.directory, str(checkpoint.spec), "2", f"parquet:{tmp_path}/again")
    assert inline.run_all(*inline.start(again))["records"] == 1878


def test_spill_directories_of_one_host_are_refused_with_a_shared_workspace(
    workspace: str, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path}/out")
    (tmp_path / "tier").mkdir()
    monkeypatch.setenv("CDR_SPILL_DIRS", f"{tmp_path}/tier:1GiB")
    with pytest.raises(SettingsRefused, match="CDR_SPILL_DIRS names directories of one host"):
        check(request, settings_module.load())
    monkeypatch.setenv("CDR_WORKSPACE", str(tmp_path / "mount"))
    check(request, settings_module.load())
    monkeypatch.setenv("CDR_WORKSPACE_SHARED", "true")
    with pytest.raises(SettingsRefused, match="CDR_SPILL_DIRS names directories of one host"):
        check(request, settings_module.load())


def test_an_executor_that_does_not_see_the_workspace_says_so(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    """A directory of the driver's host is nothing, and not empty work, on another."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path}/out")
    repository, recovery, settings = inline.start(request)
    seen = inline.InlineWorkers()
    elsewhere = str(tmp_path / "on-another-host")

    def run(drive: PhaseRun, payload: str, units: Sequence[str], on_poll: Callable[[], None]) -> None:
        run_unit(json.dumps({**json.loads(payload), "root": elsewhere}), units[0], 0)

    seen.run = run  # type: ignore[method-assign] # the same work on a host without the workspace
    with pytest.raises(Refused, match=f"does not see the workspace: {elsewhere}"):
        inline.run(repository, recovery, Phase.READ, settings, seen)
    assert not (tmp_path / "on-another-host").exists()


def test_on_a_shared_mount_any_host_may_go_on(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path}/out")
    monkeypatch.setenv("CDR_WORKSPACE_SHARED", "true")
    repository, recovery, settings = inline.start(request)
    inline.run(repository, recovery, Phase.READ, settings)
    monkeypatch.setattr("cdr_core.runtime.driver.host_id", lambda: "another host")
    for phase in (Phase.FILTER, Phase.SPILL, Phase.DRAIN, Phase.COMMIT):
        result = inline.run(repository, recovery, phase, settings)
    assert result["verdict"] == "balanced"
    compare(output.rows(tmp_path / "out"), checkpoint, 2)
