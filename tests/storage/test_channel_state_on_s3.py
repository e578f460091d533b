"""Channel state that lies on S3: the same elements as from a disk, by few requests, no byte twice, and clean errors."""

from __future__ import annotations

import io
import json
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from cdr_core.channels import channel_source as source
from cdr_core.channels import fetch_ranges as cells
from cdr_core.channels.channel_source import open_channel, open_checkpoint
from cdr_core.channels.fetch_ranges import CELL, LONGEST_GAP, LONGEST_REQUEST, Extent, cells_of, requests
from cdr_core.cli import main
from cdr_core.errors import SourceChanged
from cdr_core.flink.metadata import FileSegment, write_metadata
from cdr_core.flink.virtual_channel import windows
from cdr_core.planning.job_spec import parse_spec
from cdr_core.planning.parallelism import parse_parallelism
from cdr_core.planning.plan import Plan, make_plan
from cdr_core.storage import s3
from tests.flink_formats.generate.made import exchange, make, spec_of
from tests.support.bucket import Bucket, CountingClient, key_of
from tests.support.checkpoints import FixtureCheckpoints

SPEC = spec_of(exchange("main", "gen", "slow", "TUPLE<LONG, STRING>"))
MEBIBYTE = 1 << 20


@pytest.fixture
def client(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> CountingClient:
    """What cdr reaches the bucket by."""
    counting = CountingClient(bucket.client)
    monkeypatch.setattr(s3, "_client", lambda _endpoint: counting)
    monkeypatch.setattr(s3, "FIRST_PAUSE", 0.0)
    source._fetched.cache_clear()
    return counting


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six channels in two files of about 20 MiB, their chunks between each other's."""
    return make(tmp_path_factory.mktemp("made") / "chk-1", SPEC, "gen=2,slow=3", "40MiB", subtasks_per_file=3).path


def plan_of(uri: str, spec: str = SPEC) -> Plan:
    return make_plan(open_checkpoint(uri), parse_spec(spec), parse_parallelism("same"), 1 << 62)


def channel_bytes(plan: Plan, number: int) -> bytes:
    channel = open_channel(plan, number)
    data = np.empty(channel.size, np.uint8)
    channel.copy(0, channel.size, data)
    return data.tobytes()


def every_channel(plan: Plan) -> list[bytes]:
    return [channel_bytes(plan, number) for number in range(len(plan.channels))]


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["cdr", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.run()
    shown = capsys.readouterr()
    return int(ended.value.code or 0), shown.out, shown.err


@pytest.mark.parametrize("name", ["a_p3_thr0", "a_p3_thr1mb", "e_p4_seg32k", "g_p7_thr0"])
def test_commands_say_the_same_of_a_checkpoint_on_s3_as_of_its_local_copy(
    bucket: Bucket,
    client: CountingClient,
    fixture_checkpoint: FixtureCheckpoints,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    checkpoint = fixture_checkpoint(name, 2)
    uri, local, spec = bucket.upload(checkpoint.path), str(checkpoint.path), str(checkpoint.spec)
    for command in (["elements", "--spec", spec, "--json"], ["spec"]):
        here = run(monkeypatch, capsys, command[0], local, *command[1:])
        there = run(monkeypatch, capsys, command[0], uri, *command[1:])
        assert there[:2] == here[:2]
        assert here[0] == 0
    here = run(monkeypatch, capsys, "inspect", local, "--spec", spec, "--json")
    there = run(monkeypatch, capsys, "inspect", uri, "--spec", spec, "--json")
    for part in ("totals", "exchanges", "operators", "blocks"):
        assert json.loads(there[1])[part] == json.loads(here[1])[part]


def test_every_byte_is_fetched_once_by_few_large_requests(large: Path, bucket: Bucket, client: CountingClient) -> None:
    uri = bucket.upload(large)
    plan, local = plan_of(uri), plan_of(str(large))
    before = len(client.ranges)
    assert every_channel(plan) == every_channel(local)
    ranges = [each for each in client.ranges[before:] if not each[0].endswith("_metadata")]
    files = [path for path in large.iterdir() if path.name != "_metadata"]
    assert max(end - begin for _, begin, end in ranges) <= LONGEST_REQUEST
    assert len(ranges) <= sum(path.stat().st_size // (8 * MEBIBYTE) + 2 for path in files)
    for path in files:
        mine = sorted((begin, end) for key, begin, end in ranges if key == key_of(f"{uri}/{path.name}"))
        assert all(end <= begin for (_, end), (begin, _) in pairwise(mine))
        assert sum(end - begin for begin, end in mine) <= path.stat().st_size


def merged_into_one_object(path: Path, bucket: Bucket) -> tuple[str, int, int]:
    """The checkpoint as Flink's file merging leaves it: segments of one object among bytes of nobody. Its address, the
    object's size, and how much of it is channel state.
    """
    uri, data, starts = bucket.uri(), bytearray(b"x" * 3 * LONGEST_GAP), {}
    for file in sorted(each for each in path.iterdir() if each.name != "_metadata"):
        starts[file.name] = len(data)
        data += file.read_bytes() + b"y" * 3 * LONGEST_GAP

    def moved(handle: Any) -> Any:
        name, size = handle.delegate.path, handle.delegate.size
        return replace(handle, delegate=FileSegment(starts[name], size, 0, f"{uri}/merged", name))

    def moved_all(subtask: Any) -> Any:
        inputs, outputs = (tuple(map(moved, side)) for side in (subtask.input_channels, subtask.output_channels))
        return replace(subtask, input_channels=inputs, output_channels=outputs)

    metadata = open_checkpoint(str(path)).metadata
    operators = tuple(replace(o, subtasks=tuple(map(moved_all, o.subtasks))) for o in metadata.operators)
    bucket.put(f"{uri}/merged", bytes(data))
    bucket.put(f"{uri}/_metadata", write_metadata(replace(metadata, operators=operators)))
    return uri, len(data), len(data) - 3 * LONGEST_GAP * (len(starts) + 1)


def test_segments_of_a_shared_object_are_fetched_without_what_lies_between(
    bucket: Bucket, client: CountingClient, tmp_path: Path
) -> None:
    path = make(tmp_path / "chk-1", SPEC, "3", "2MiB", subtasks_per_file=2).path
    uri, size, wanted = merged_into_one_object(path, bucket)
    plan = plan_of(uri)
    assert every_channel(plan) == every_channel(plan_of(str(path)))
    fetched = client.bytes[key_of(f"{uri}/merged")]
    assert wanted == fetched < size


def test_one_channel_fetches_its_own_neighbourhood(
    bucket: Bucket, client: CountingClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "CELL", 16 * 1024)
    monkeypatch.setattr(cells, "LONGEST_GAP", 16 * 1024)
    uri = bucket.upload(make(tmp_path / "chk-1", SPEC, "gen=40,slow=40", "16MiB", buffer="4KiB").path)
    plan = plan_of(uri)
    before = sum(client.bytes.values())
    channel_bytes(plan, 0)
    assert sum(client.bytes.values()) - before < 4 * MEBIBYTE


def test_a_large_channel_is_not_held_in_memory(bucket: Bucket, client: CountingClient, tmp_path: Path) -> None:
    uri = bucket.upload(make(tmp_path / "chk-1", SPEC, "1", "80MiB").path)
    plan = plan_of(uri)
    open_channel(plan_of(bucket.upload(make(tmp_path / "small", SPEC, "1", "1MiB").path)), 0)
    tracemalloc.start()
    channel = open_channel(plan, 0)
    records = sum(len(window.starts) for window in windows(channel, 0, channel.size, 0, MEBIBYTE))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert records
    assert channel.size > 75 * MEBIBYTE
    assert peak < 3 * LONGEST_REQUEST


def slow_down(_name: str, _arguments: dict[str, Any]) -> None:
    raise ClientError({"Error": {"Code": "SlowDown", "Message": "…"}}, "GetObject")


def time_out(_name: str, _arguments: dict[str, Any]) -> None:
    raise ReadTimeoutError(endpoint_url="x")


def cut_short(_name: str, _arguments: dict[str, Any], answer: Any) -> Any:
    return {**answer, "Body": io.BytesIO(answer["Body"].read()[:-3])}


def too_long(_name: str, _arguments: dict[str, Any], answer: Any) -> Any:
    return {**answer, "Body": io.BytesIO(answer["Body"].read() + b"extra")}


def every_second(fault: Callable[..., Any], calm: Callable[..., Any]) -> Callable[..., Any]:
    calls = iter(range(10**6))
    return lambda name, *rest: (fault if name == "get_object" and next(calls) % 2 == 0 else calm)(name, *rest)


FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "503": ("before", slow_down),
    "timeout": ("before", time_out),
    "short read": ("after", cut_short),
    "wrong length": ("after", too_long),
}


@pytest.mark.seed("E04", "E05")
@pytest.mark.parametrize("fault", FAULTS)
def test_faults_that_pass_change_nothing(
    bucket: Bucket, client: CountingClient, fixture_checkpoint: FixtureCheckpoints, fault: str
) -> None:
    """A range is asked for again, as often as patience lasts."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    local = plan_of(str(checkpoint.path), checkpoint.spec.read_text())
    uri = bucket.upload(checkpoint.path)
    when, act = FAULTS[fault]
    setattr(client, when, every_second(act, getattr(client, when)))
    plan = plan_of(uri, checkpoint.spec.read_text())
    assert every_channel(plan) == every_channel(local)


def channel_file(path: Path) -> str:
    return max((file for file in path.iterdir() if file.name != "_metadata"), key=lambda file: file.stat().st_size).name


@pytest.mark.seed("E05")
@pytest.mark.parametrize("damage", ["missing", "shortened"])
def test_an_object_that_is_missing_or_too_short_is_one_sentence_and_exit_5(
    bucket: Bucket,
    client: CountingClient,
    fixture_checkpoint: FixtureCheckpoints,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    damage: str,
) -> None:
    """What is short by the metadata's own numbers is an error, never fewer records."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    uri = bucket.upload(checkpoint.path)
    file = f"{uri}/{channel_file(checkpoint.path)}"
    bucket.delete(file) if damage == "missing" else bucket.put(file, bucket.get(file)[:-1])
    for command in ("elements", "inspect"):
        source._fetched.cache_clear()
        code, _, err = run(monkeypatch, capsys, command, uri, "--spec", str(checkpoint.spec))
        assert code == 5
        assert ("does not exist" if damage == "missing" else "are needed") in err
        assert err.count("\n") == 1


def test_an_object_that_changes_while_it_is_read_is_noticed(
    large: Path, bucket: Bucket, client: CountingClient
) -> None:
    uri = bucket.upload(large)
    plan = plan_of(uri)
    file = f"{uri}/{channel_file(large)}"

    def replace_after_first(name: str, arguments: dict[str, Any], answer: Any) -> Any:
        if name == "get_object" and arguments["Key"] == key_of(file):
            client.after = lambda _n, _a, later: later
            bucket.put(file, bucket.get(file)[:-10] + b"0123456789")
        return answer

    client.after = replace_after_first
    with pytest.raises(SourceChanged, match="changed while it was being read"):
        every_channel(plan)


def extent(begin: int, end: int, *chunks: int) -> Extent:
    return Extent(begin, end, np.array(chunks, np.int64))


def bounds(found: cells.Cells) -> list[tuple[int, int]]:
    return list(zip(found.starts.tolist(), found.ends.tolist(), strict=True))


def test_cells_end_where_chunks_begin_and_hold_every_byte_of_a_stream() -> None:
    step = CELL // 3
    found = cells_of([extent(0, 10 * step, *range(4, 10 * step, step))])
    assert bounds(found)[0][0] == 0
    assert bounds(found)[-1][1] == 10 * step
    assert all(left[1] == right[0] for left, right in pairwise(bounds(found)))
    assert all((begin - 4) % step == 0 for begin, _ in bounds(found)[1:])


def test_bytes_between_streams_are_in_no_cell_and_hostile_places_are_left_out() -> None:
    found = cells_of([extent(100, 200, 104, 150), extent(5000, 6000, 5004, 2**60, -5)])
    assert bounds(found) == [(100, 200), (5000, 6000)]
    assert bounds(cells_of([])) == []
    assert bounds(cells_of([extent(7, 7)])) == []


def test_requests_bridge_small_gaps_stay_short_and_ask_for_nothing_twice() -> None:
    every = cells_of([extent(0, 40 * CELL, *range(4, 40 * CELL, CELL // 4))])
    count = len(every.starts)
    none = np.zeros(count, bool)
    whole = requests(every, np.arange(count), none)
    assert [int(every.ends[last] - every.starts[first]) <= LONGEST_REQUEST for first, last in whole] == [True] * 3
    assert (whole[0][0], whole[-1][1]) == (0, count - 1)
    near, far = np.array([0, 2]), np.array([0, 2 + int(LONGEST_GAP // CELL)])
    assert requests(every, near, none) == [(0, 2)]
    assert len(requests(every, far, none)) == 2
    present = none.copy()
    present[1] = True
    assert requests(every, near, present) == [(0, 0), (2, 2)], "the cell between is there already"
    present[:] = True
    assert requests(every, near, present) == []
