"""``cdr inspect``: what a person sees first, what blocks a rescale, and that payload is not touched without a spec."""

from __future__ import annotations

import json
import os
import re
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdr_core.channels import channel_source as source
from cdr_core.channels.channel_source import open_checkpoint
from cdr_core.flink.metadata import (
    AbsoluteFile,
    FinishedSubtask,
    MergedChannelHandle,
    Offsets,
    RelativeFile,
    SingleChannelHandle,
    SubtaskState,
    write_metadata,
)
from cdr_core.inspection.checkpoint_text import WIDTH, bar, duration, size, skew, text_of
from cdr_core.inspection.checkpoint_view import inspect_checkpoint
from cdr_core.inspection.rescale_blockers import blocks_of
from cdr_core.storage import s3
from cdr_core.storage.local import LocalStorage, map_file
from tests.flink_formats.generate.made import exchange, make, spec_of
from tests.support import written
from tests.support.bucket import Bucket, CountingClient, key_of
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.shell import Shell

SPEC = spec_of(exchange("main", "gen", "slow", "TUPLE<LONG, STRING>"))
MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def few_megabytes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("made") / "chk-1", SPEC, size="4MiB").path


def test_without_a_spec_no_payload_byte_of_a_local_file_is_read(
    few_megabytes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: dict[str, int] = defaultdict(int)
    real = LocalStorage.read

    def counted(self: LocalStorage, uri: str, offset: int = 0, length: int | None = None) -> bytes:
        data = real(self, uri, offset, length)
        read[Path(uri).name] += len(data)
        return data

    def mapped(uri: str) -> Any:
        array = map_file(uri)
        read[Path(uri).name] += len(array)
        return array

    monkeypatch.setattr(LocalStorage, "read", counted)
    monkeypatch.setattr(source, "map_file", mapped)
    assert inspect_checkpoint(str(few_megabytes), "")["totals"]["bytes"] > 3 * MEBIBYTE
    assert dict(read) == {"_metadata": (few_megabytes / "_metadata").stat().st_size}
    inspect_checkpoint(str(few_megabytes), SPEC)
    assert sum(read.values()) > 3 * MEBIBYTE, "with a spec the payload is read, so it would have been counted"


def test_without_a_spec_no_payload_byte_is_fetched_from_s3(
    few_megabytes: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = CountingClient(bucket.client)
    monkeypatch.setattr(s3, "_client", lambda _endpoint: client)
    uri = bucket.upload(few_megabytes)
    assert inspect_checkpoint(uri, "")["totals"]["bytes"] > 3 * MEBIBYTE
    assert dict(client.bytes) == {key_of(f"{uri}/_metadata"): (few_megabytes / "_metadata").stat().st_size}
    assert set(client.requests) == {"head_object", "get_object"}


def test_the_age_is_that_of_the_metadata_object(
    shell: Shell, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    path = fixture_checkpoint("a_p3_thr0", 2).copy(tmp_path / "chk-2")
    three_hours_ago = time.time() - 3 * 3600 - 12 * 60
    os.utime(path / "_metadata", (three_hours_ago, three_hours_ago))
    value = inspect_checkpoint(str(path), "")
    assert 3 * 3600 + 12 * 60 <= value["age_s"] < 3 * 3600 + 12 * 60 + 60
    assert value["modified"].endswith("+00:00")
    _, out, _ = shell("inspect", str(path))
    assert "written 3 h 12 min ago" in out
    assert "by the time of its _metadata" in out


def test_the_largest_channels_are_named_largest_first(fixture_checkpoint: FixtureCheckpoints) -> None:
    checkpoint = fixture_checkpoint("g_p7_thr0", 2)
    value = inspect_checkpoint(str(checkpoint.path), str(checkpoint.spec))
    every = [channel["bytes"] for operator in value["operators"] for channel in operator["channels"]]
    assert [channel["bytes"] for channel in value["largest"]] == sorted(every, reverse=True)[:5]
    assert {"operator", "side", "subtask", "channel", "buffers"} < set(value["largest"][0])
    for one in value["exchanges"]:
        sizes = [channel["bytes"] for channel in one["channels"]]
        assert [channel["bytes"] for channel in one["largest"]] == sorted(sizes, reverse=True)[:5]


def kinds(value: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(block["kind"], block.get("exchange") or block.get("operator") or "") for block in value]


def test_in_flight_data_needs_a_spec_until_there_is_one(fixture_checkpoint: FixtureCheckpoints) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    assert kinds(inspect_checkpoint(str(checkpoint.path), "")["blocks"]) == [
        ("needs-spec", "gen"),
        ("needs-spec", "slow"),
    ]
    assert inspect_checkpoint(str(checkpoint.path), str(checkpoint.spec))["blocks"] == []


def test_finished_subtasks_and_operators_at_their_limit_are_in_the_way(fixture_checkpoint: FixtureCheckpoints) -> None:
    checkpoint = open_checkpoint(str(fixture_checkpoint("a_p3_thr0", 2).path))
    first, second, third = checkpoint.metadata.operators
    operators = (
        replace(first, max_parallelism=3),
        replace(second, subtasks=(*second.subtasks[:2], FinishedSubtask(2))),
        replace(third, subtasks=(), finished_mark=-1),
    )
    changed = replace(checkpoint, metadata=replace(checkpoint.metadata, operators=operators))
    found = blocks_of(changed)
    assert [kind for kind, _ in kinds(found)] == ["max-parallelism", "finished", "finished"]
    assert "1 of 3" in found[1]["what"]
    assert "in all of its subtasks" in found[2]["what"]


REFUSED = {
    "hash without a key": ("    key: [f0]\n", "", "without a key"),
    "hash of records that cannot be looked into": ("TUPLE<LONG, INT, LONG, STRING>", "OPAQUE", "OPAQUE"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_plan_would_refuse_is_told_with_the_exchanges_name(
    fixture_checkpoint: FixtureCheckpoints, case: str
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    old, new, reason = REFUSED[case]
    spec = checkpoint.spec.read_text() + "\n"
    assert old in spec
    (block,) = inspect_checkpoint(str(checkpoint.path), spec.replace(old, new))["blocks"]
    assert (block["kind"], block["exchange"]) == ("refused", "main")
    assert reason in block["what"]


@pytest.mark.parametrize("partitioner", ["forward", "rescale", "broadcast"])
def test_state_on_an_exchange_that_cannot_be_split_is_in_the_way(
    fixture_checkpoint: FixtureCheckpoints, partitioner: str
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    spec = checkpoint.spec.read_text().replace("partitioner: hash", f"partitioner: {partitioner}")
    found = inspect_checkpoint(str(checkpoint.path), spec)["blocks"]
    assert [kind for kind, _ in kinds(found)] == ["refused"]
    assert "main" in found[0]["what"]


def test_the_text_fits_a_hundred_columns(fixture_checkpoint: FixtureCheckpoints) -> None:
    for name in ("a_p3_thr0", "g_p7_thr0", "c_p7_thr0"):
        checkpoint = fixture_checkpoint(name, 2)
        for spec in ("", str(checkpoint.spec)):
            _, *lines = text_of(inspect_checkpoint(str(checkpoint.path), spec))
            assert max(map(len, lines)) <= WIDTH


def test_of_several_checkpoints_one_that_cannot_be_shown_makes_it_five(
    shell: Shell, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    good, bad = str(checkpoint.path), str(tmp_path / "nowhere")
    unfit = checkpoint.spec.read_text().replace("slow", "quick")
    code, out, err = shell("inspect", bad, good)
    assert (code, "exchange" in out, bad in err) == (5, False, True)
    code, out, _ = shell("inspect", bad, good, "--spec", unfit, "--json")
    assert code == 5
    assert ["error" in json.loads(line) for line in out.splitlines()] == [True, True]
    refused = "hdfs://namenode/chk-1"
    code, out, err = shell("inspect", good, refused)
    assert (code, good in out, refused in err) == (5, True, True)
    assert shell("inspect", refused, refused)[0] == 3


def test_bars_sizes_and_durations_read_well() -> None:
    assert (bar(0, 10), bar(1, 10**9), bar(10, 10)) == ("", "▏", "█" * 24)
    assert [size(n) for n in (0, 1023, 1536, 5 << 20, 3 << 40)] == [
        "0 bytes",
        "1023 bytes",
        "1.5 KiB",
        "5.0 MiB",
        "3.0 TiB",
    ]
    assert [duration(s) for s in (0, 59, 3600, 90061)] == ["0 s", "59 s", "1 h 0 min", "1 d 1 h"]
    assert (skew([10, 10]), skew([30, 10]), skew([5])) == (", skew 1.0×", ", skew 1.5×", "")


def _with_size(path: Path, announced: int) -> None:
    """Let every input handle say this of its size."""
    metadata = open_checkpoint(str(path)).metadata

    def changed(subtask: Any) -> Any:
        handles = [
            replace(handle, channels=[replace(part, size=announced) for part in handle.channels])
            if isinstance(handle, MergedChannelHandle)
            else replace(handle, size=announced)
            for handle in subtask.input_channels
        ]
        return replace(subtask, input_channels=handles)

    operators = tuple(replace(op, subtasks=tuple(map(changed, op.subtasks))) for op in metadata.operators)
    (path / "_metadata").write_bytes(write_metadata(replace(metadata, operators=operators)))


@pytest.mark.parametrize("announced", [0, -1, -(1 << 40), 1 << 40])
def test_a_size_that_cannot_be_true_is_said_to_be_none_and_a_spec_finds_the_true_one(
    shell: Shell, tmp_path: Path, announced: int
) -> None:
    spec, data = written.SPEC.format(partitioner="rebalance"), b"".join(written.record(key, "abc") for key in range(9))
    path = Path(written.write_checkpoint(tmp_path / "chk-1", 1, 1, {(0, 0): (data[:100], data[100:])}))
    _with_size(path, announced)
    value = inspect_checkpoint(str(path), "")
    assert value["totals"]["bytes"] is None
    assert [channel["bytes"] for channel in value["largest"]] == [len(data) - 100]
    code, out, _ = shell("inspect", str(path))
    assert code == 0
    assert "announced sizes do not fit the chunks" in out
    assert re.search(r"-\d+ bytes", out) is None

    value = inspect_checkpoint(str(path), spec)
    assert value["totals"]["bytes"] == len(data)
    assert [channel["bytes"] for channel in value["largest"]] == sorted([100, len(data) - 100], reverse=True)
    code, out, _ = shell("plan", str(path), "--spec", spec, "--parallelism", "2", "--json")
    assert (code, sum(exchange["bytes"] for exchange in json.loads(out)["exchanges"])) == (0, len(data))


def test_a_possible_but_wrong_size_does_not_outlive_a_spec(tmp_path: Path) -> None:
    spec, data = written.SPEC.format(partitioner="rebalance"), b"".join(written.record(key, "abc") for key in range(9))
    path = Path(written.write_checkpoint(tmp_path / "chk-1", 1, 1, {(0, 0): (data, b"")}))
    _with_size(path, 40)
    assert inspect_checkpoint(str(path), spec)["totals"]["bytes"] == len(data)


def test_a_gate_outside_the_spec_that_holds_empty_chunks_only_is_counted_and_not_decoded(tmp_path: Path) -> None:
    spec, data = written.SPEC.format(partitioner="rebalance"), written.record(1)
    path = Path(written.write_checkpoint(tmp_path / "chk-1", 1, 1, {(0, 0): (data, b"")}))
    (path / "empty").write_bytes(bytes(8))
    drained = SingleChannelHandle(0, 5, 0, Offsets.of([4]), 4, RelativeFile("empty", 8))
    metadata = open_checkpoint(str(path)).metadata
    gen, slow = metadata.operators
    sender = gen.subtasks[0]
    assert isinstance(sender, SubtaskState)
    operators = (replace(gen, subtasks=(replace(sender, output_channels=[drained]),)), slow)
    (path / "_metadata").write_bytes(write_metadata(replace(metadata, operators=operators)))

    value = inspect_checkpoint(str(path), spec)
    assert value["totals"] == {"records": 1, "elements": 1, "bytes": len(data), "buffers": 2}
    assert [channel["bytes"] for channel in value["operators"][0]["channels"]] == [0]


def test_a_checkpoint_without_channel_state_says_why_that_can_be(shell: Shell, tmp_path: Path) -> None:
    path = written.write_checkpoint(tmp_path / "chk-1", 2, 2, {})
    code, out, _ = shell("inspect", path)
    assert code == 0
    assert "in flight: 0 bytes in 0 buffers of 0 channels" in out
    assert "an aligned one" in out
    assert "broadcast or pointwise" in out


def test_a_bucket_that_is_not_there_is_not_called_a_directory_without_metadata(shell: Shell, bucket: Bucket) -> None:
    code, _, err = shell("inspect", "s3://nobucket/chk-1")
    assert code == 5
    assert "there is no bucket 'nobucket'" in err
    code, _, err = shell("inspect", bucket.uri())
    assert (code, "it has no _metadata" in err) == (5, True)


@pytest.mark.parametrize(
    ("version", "said"),
    [
        (7, "version 7 is newer than this cdr knows (2 to 6)"),
        (1, "version 1 is older than this cdr knows (2 to 6)"),
    ],
)
def test_metadata_of_an_unknown_version_is_said_to_be_newer_or_older(
    shell: Shell, tmp_path: Path, version: int, said: str
) -> None:
    path = Path(written.write_checkpoint(tmp_path / "chk-1", 1, 1, {}))
    data = bytearray((path / "_metadata").read_bytes())
    data[4:8] = version.to_bytes(4, "big")
    (path / "_metadata").write_bytes(data)
    code, _, err = shell("inspect", str(path))
    assert (code, said in err, "damaged" in err) == (5, True, False)


@pytest.mark.parametrize("command", ["elements", "inspect"])
def test_in_flight_data_that_cdr_cannot_reach_is_named_by_checkpoint_and_operator(
    shell: Shell, tmp_path: Path, command: str
) -> None:
    path = Path(written.write_checkpoint(tmp_path / "chk-1", 1, 1, {(0, 0): (written.record(1), b"")}))
    metadata = open_checkpoint(str(path)).metadata
    gen, slow = metadata.operators
    subtask: Any = slow.subtasks[0]
    far = replace(subtask.input_channels[0], delegate=AbsoluteFile("hdfs://name/state", 100))
    moved = replace(slow, subtasks=(replace(subtask, input_channels=(far,)),))
    (path / "_metadata").write_bytes(write_metadata(replace(metadata, operators=(gen, moved))))
    code, _, err = shell(command, str(path), "--spec", written.SPEC.format(partitioner="rebalance"))
    assert code == 3
    assert f"hdfs://, which cdr cannot reach (hdfs://name/state) (checkpoint {path}, operator slow" in err
