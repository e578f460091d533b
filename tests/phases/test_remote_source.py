"""A checkpoint on S3 is read where it lies, each byte at most twice, and recovered to the same rows as from a disk."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cdr_core.channels import batch_scan as scan_batch
from cdr_core.channels import batch_selection as select_batch
from cdr_core.channels import channel_scan
from cdr_core.channels import channel_source as source
from cdr_core.channels import fetch_ranges as cells
from cdr_core.channels.channel_scan import salvage_channel
from cdr_core.errors import CorruptChannelState, SettingsRefused, SourceChanged
from cdr_core.metadata import Phase, Repository
from cdr_core.planning.job_spec import parse_spec
from cdr_core.planning.parallelism import parse_parallelism
from cdr_core.planning.plan import Plan, make_plan
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.settings import Settings
from cdr_core.storage import s3
from tests.support import inline, output
from tests.support.bucket import Bucket, CountingClient, key_of
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.spill import small_disk

Started = tuple[Repository, str, Settings]


@pytest.fixture
def client(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> CountingClient:
    counting = CountingClient(bucket.client)
    monkeypatch.setattr(s3, "_client", lambda _endpoint: counting)
    monkeypatch.setattr(s3, "FIRST_PAUSE", 0.0)
    return counting


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small checkpoint has many."""
    monkeypatch.setattr(cells, "CELL", 2048)
    monkeypatch.setattr(cells, "LONGEST_REQUEST", 16 * 1024)


def begin(checkpoint: FixtureCheckpoint, where: str, to: Path, on_corrupt: str = "fail") -> Started:
    for cached in (source.open_planned, source._fetched):
        cached.cache_clear()  # each run starts as a process of its own would
    return inline.start(RecoveryRequest(where, str(checkpoint.spec), "2", f"parquet:{to}", on_corrupt=on_corrupt))


def rows_of(directory: Path) -> list[dict[str, Any]]:
    return sorted(output.rows(directory), key=lambda row: (row["gate"], row["up"], row["down"], row["pos"]))


@pytest.fixture
def short_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small channels are read in place too."""
    for module in (scan_batch, select_batch, channel_scan):
        monkeypatch.setattr(module, "WORTH_A_SUM", 1)


@pytest.mark.parametrize("short", [True, False], ids=["in place", "copied"])
@pytest.mark.parametrize("name", ["a_p3_thr0", "a_p3_thr1mb", "g_p7_thr0"])
def test_recovered_from_s3_it_is_the_same_as_from_a_disk_and_each_byte_was_fetched_at_most_twice(
    bucket: Bucket,
    client: CountingClient,
    small_ranges: None,
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    name: str,
    short: bool,
) -> None:
    if short:
        request.getfixturevalue("short_references")
    checkpoint = fixture_checkpoint(name, 2)
    uri = bucket.upload(checkpoint.path)
    here = begin(checkpoint, str(checkpoint.path), tmp_path / "here")
    inline.run_all(*here)
    there = begin(checkpoint, uri, tmp_path / "there")
    client.ranges.clear()
    result = inline.run_all(*there)
    assert result["verdict"] == "balanced"
    assert rows_of(tmp_path / "there") == rows_of(tmp_path / "here")
    files = {path.name for path in checkpoint.path.iterdir() if path.name != "_metadata"}
    came = Counter[tuple[str, int]]()
    for key, first, last in client.ranges:
        if key.rpartition("/")[2] in files:
            came.update((key, place) for place in range(first, last))
    assert max(came.values(), default=0) <= 2
    repository, recovery, _ = there
    receipt = repository.receipt(recovery)
    assert receipt is not None
    assert receipt["run"]["fetched_bytes"] == sum(came.values())


def channel_file(checkpoint: FixtureCheckpoint) -> str:
    files = [path for path in checkpoint.path.iterdir() if path.name != "_metadata"]
    return max(files, key=lambda path: path.stat().st_size).name


@pytest.mark.seed("002-08", "E05")
@pytest.mark.parametrize("damage", ["missing", "shortened", "shortened while reading"])
def test_an_object_that_is_missing_or_shortened_is_an_error_and_commits_nothing(
    bucket: Bucket,
    client: CountingClient,
    small_ranges: None,
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    damage: str,
) -> None:
    """A source that cannot be read whole fails the phase with its cause."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    uri = bucket.upload(checkpoint.path)
    repository, recovery, settings = begin(checkpoint, uri, tmp_path / "out")
    file = f"{uri}/{channel_file(checkpoint)}"

    def shorten(_name: str = "", arguments: dict[str, Any] | None = None) -> None:
        if arguments is None or (_name == "get_object" and arguments["Key"] == key_of(file)):
            client.before = lambda _n, _a: None
            bucket.put(file, bucket.get(file)[:-1])

    if damage == "missing":
        bucket.delete(file)
    elif damage == "shortened":
        shorten()
    else:
        client.before = shorten
    sentence = re.escape(file) if damage == "shortened while reading" else "channel-state file"
    expected = SourceChanged if damage == "shortened while reading" else CorruptChannelState
    with pytest.raises(expected, match=sentence):
        inline.run(repository, recovery, Phase.READ, settings)
    assert output.manifest(tmp_path / "out") is None
    assert repository.prepared(recovery) == ()


def damage_file(file: Path, damage: str) -> None:
    data = bytearray(file.read_bytes())
    if damage == "a chunk length":
        data[4] = 0x7F  # of the first chunk
    if damage in ("missing", "empty", "shortened", "cut in the header"):
        kept = {"missing": 0, "empty": 0, "shortened": 60_000, "cut in the header": 3}[damage]
        del data[kept:]
    file.unlink()
    if damage != "missing":
        file.write_bytes(data)


def damaged_copy(checkpoint: FixtureCheckpoint, to: Path, *damages: str) -> Path:
    """A copy whose largest files, which hold channel state, have these damages."""
    copy = checkpoint.copy(to)
    files = sorted((file for file in copy.iterdir() if file.name != "_metadata"), key=lambda file: -file.stat().st_size)
    for file, damage in zip(files, damages, strict=False):
        damage_file(file, damage)
    return copy


def test_what_is_damaged_on_s3_is_put_aside_as_from_a_disk(
    bucket: Bucket,
    client: CountingClient,
    small_ranges: None,
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
) -> None:
    """The same records before the damage, the same bytes behind it."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    copy = damaged_copy(checkpoint, tmp_path / "chk-2", "shortened", "missing")
    found = {}
    for name, where in (("disk", str(copy)), ("s3", bucket.upload(copy))):
        started = begin(checkpoint, where, tmp_path / name, "quarantine")
        assert inline.run_all(*started)["verdict"] == "partial"
        lines = (started[0].receipt(started[1]) or {})["run"]["quarantine"]
        assert [line["bytes"] for line in lines] == [Path(line["file"]).stat().st_size for line in lines]
        found[name] = [{**line, "file": "", "reason": ""} for line in lines], rows_of(tmp_path / name)
    assert found["s3"] == found["disk"]
    assert 0 < len(found["s3"][1]) < 1878


@pytest.mark.parametrize("damages", [("a chunk length", "empty"), ("cut in the header", "shortened")])
def test_what_is_damaged_on_s3_is_salvaged_where_it_lies_too(
    bucket: Bucket,
    client: CountingClient,
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    damages: tuple[str, ...],
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    copy = damaged_copy(checkpoint, tmp_path / "chk-2", *damages)
    local, remote = (plan_of(where, checkpoint) for where in (str(copy), bucket.upload(copy)))
    found = []
    for number in range(len(local.channels)):
        (there, _, bad), (here, _, same) = salvage_channel(remote, number), salvage_channel(local, number)
        assert (there, bad and bad.offset) == (here, same and same.offset)
        found.append(bad)
    assert any(found)


def plan_of(where: str, checkpoint: FixtureCheckpoint) -> Plan:
    spec = parse_spec(checkpoint.spec.read_text())
    return make_plan(source.open_checkpoint(where), spec, parse_parallelism("2"), 1 << 24)


def test_an_object_that_changed_between_attempts_is_refused(
    bucket: Bucket, client: CountingClient, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    """A later attempt reads the objects that the first one saw, or none."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    uri = bucket.upload(checkpoint.path)
    repository, recovery, settings = begin(checkpoint, uri, tmp_path / "out")
    file = f"{uri}/{channel_file(checkpoint)}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CDR_FAULTS", "read.before-result=raise")
        with pytest.raises(Exception, match="fault injected"):
            inline.run(repository, recovery, Phase.READ, settings)
    data = bucket.get(file)
    bucket.put(file, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(SourceChanged, match=re.escape(file)):
        inline.run(repository, recovery, Phase.READ, settings)


@pytest.mark.parametrize("step", ["read.pinned", "read.before-result", "read.before-record", "read.after-record"])
def test_killed_while_reading_the_next_attempt_goes_on(
    bucket: Bucket, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, step: str
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    uri = bucket.upload(checkpoint.path)
    started = begin(checkpoint, uri, tmp_path / "out")
    repository, recovery, _ = started
    pid = os.fork()
    if pid == 0:
        try:
            os.environ["CDR_FAULTS"] = f"{step}=kill"
            inline.main([str(Phase.READ), recovery])
        finally:
            os._exit(70)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    recorded = {row.unit: row.epoch for row in repository.units(recovery, Phase.READ)}
    assert inline.run_all(*started)["verdict"] == "balanced"
    again = {row.unit: row.epoch for row in repository.units(recovery, Phase.READ)}
    assert {unit: again[unit] for unit in recorded} == recorded, "what was recorded is not done again"
    assert len(output.rows(tmp_path / "out")) == 1878


@pytest.mark.parametrize("workspace", ["local", "s3"])
def test_a_scratch_disk_too_small_for_what_is_fetched_is_refused_before_anything_runs(
    bucket: Bucket,
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workspace: str,
) -> None:
    checkpoint = fixture_checkpoint("g_p7_thr0", 2)
    uri = bucket.upload(checkpoint.path)
    small = tmp_path / "small"
    with small_disk(small, 64 * 1024):
        if workspace == "s3":
            monkeypatch.setenv("CDR_WORKSPACE", bucket.uri())
            monkeypatch.setenv("CDR_SCRATCH", str(small))
        else:
            monkeypatch.setenv("CDR_WORKSPACE", str(small / "workspace"))
            (tmp_path / "tier").mkdir()
            monkeypatch.setenv("CDR_SPILL_DIRS", f"{tmp_path / 'tier'}:1GiB")
        with pytest.raises(SettingsRefused, match=r"bytes free, and tasks may need \d+ there"):
            begin(checkpoint, uri, tmp_path / "there")
