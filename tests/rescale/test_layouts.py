"""Layouts: where the bytes of a channel lie, by `_metadata` alone; reading them in place gives the channel's bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

from cdr_core.channels import channel_layout as layouts
from cdr_core.channels import channel_source as source
from cdr_core.channels import source_index
from cdr_core.channels.channel_layout import LayoutReader, StreamedChannel, layout_of, open_whole
from cdr_core.channels.channel_source import open_channel, open_checkpoint
from cdr_core.channels.remote_state import Fetches, fetching, state_files
from cdr_core.channels.source_index import index_of, make_index, use_index
from cdr_core.errors import CorruptChannelState, SourceChanged
from cdr_core.flink.checkpoint import FileLocation
from cdr_core.flink.metadata import Side
from cdr_core.planning.job_spec import parse_spec
from cdr_core.planning.parallelism import parse_parallelism
from cdr_core.planning.plan import Plan, make_plan
from tests.support.bucket import Bucket
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints

NAMES = ["a_p3_thr0", "a_p3_thr1mb", "b_p3_thr0", "d_p4_thr0", "g_p7_thr0"]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    source_index._load.cache_clear()


def noted(checkpoint: FixtureCheckpoint, where: str, tmp_path: Path) -> Plan:
    """The plan of a checkpoint whose objects were noted, and pinned where they are on a disk."""
    opened = open_checkpoint(where)
    plan = make_plan(opened, parse_spec(checkpoint.spec.read_text()), parse_parallelism("2"), 1 << 24)
    uris = dict.fromkeys(uri for operator in opened.metadata.operators for uri in state_files(opened, operator))
    index = tmp_path / "sources.json"
    index.write_bytes(make_index(list(uris), tmp_path / "pins", immutable=False).encode())
    use_index(plan.metadata_sha256, str(index))
    return plan


def whole(plan: Plan, number: int) -> bytes:
    channel = open_channel(plan, number)
    data = np.empty(channel.size, np.uint8)
    channel.copy(0, channel.size, data)
    return data.tobytes()


@pytest.mark.parametrize("name", NAMES)
def test_ranges_read_in_place_are_the_bytes_of_the_channel(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, name: str
) -> None:
    """Any ascending ranges, across chunks, sides and files; the source itself may be gone: it is pinned."""
    checkpoint = fixture_checkpoint(name, 2)
    copy = checkpoint.copy(tmp_path / "source")
    plan, draw = noted(checkpoint, str(copy), tmp_path), Random(7)
    expected = {number: whole(plan, number) for number in range(len(plan.channels))}
    for path in copy.iterdir():
        if path.name != "_metadata":
            path.unlink()
    reader, laid_out = LayoutReader(plan), 0
    for number, data in expected.items():
        layout = layout_of(plan, number, index_of(plan.metadata_sha256))
        if layout is None:
            continue
        laid_out += 1
        assert (layout.size, reader.lasts(number)) == (len(data), True)
        for _ in range(10):
            cuts = sorted(draw.sample(range(len(data) + 1), min(2 * draw.randint(1, 6), len(data) // 2 * 2)))
            starts, ends = np.array(cuts[::2]), np.array(cuts[1::2])
            if not len(starts):
                continue
            target = bytearray(int((ends - starts).sum()))
            reader.read(number, starts, ends, memoryview(target))
            assert bytes(target) == b"".join(data[a:b] for a, b in zip(starts, ends, strict=True))
    assert laid_out > 0 or name == "a_p3_thr1mb", "state in files is laid out, inline state is not"


@pytest.mark.parametrize("ignored", [0, 1, 100])
def test_what_is_not_wanted_is_read_along_or_not_and_changes_nothing(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ignored: int
) -> None:
    monkeypatch.setattr(layouts, "LONGEST_IGNORED", ignored)
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    plan = noted(checkpoint, str(checkpoint.path), tmp_path)
    number = max(range(len(plan.channels)), key=lambda each: int(plan.channels.bytes[each]))
    data = whole(plan, number)
    starts = np.arange(5, len(data) - 60, 50)
    ends = starts + np.where(np.arange(len(starts)) % 3, 50 - ignored // 2, 7)
    target = bytearray(int((ends - starts).sum()))
    LayoutReader(plan).read(number, starts, ends, memoryview(target))
    assert bytes(target) == b"".join(data[a:b] for a, b in zip(starts, ends, strict=True))


@pytest.mark.parametrize("stretch", [1, 5000, 1 << 20])
@pytest.mark.parametrize("name", ["a_p3_thr0", "g_p7_thr0"])
def test_a_streamed_channel_has_the_bytes_of_the_channel(
    bucket: Bucket,
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    stretch: int,
) -> None:
    monkeypatch.setattr(layouts, "STRETCH", stretch)
    checkpoint = fixture_checkpoint(name, 2)
    plan = noted(checkpoint, bucket.upload(checkpoint.path), tmp_path)
    streamed = 0
    with fetching(tmp_path) as fetches:
        for number in range(0, len(plan.channels), 3):
            expected = whole(plan, number)
            before = fetches.bytes
            channel = open_whole(plan, number)
            if not isinstance(channel, StreamedChannel):
                assert len(expected) <= stretch
                continue
            streamed += 1
            sides = source.sides(plan, number)
            assert (channel.size, channel.input_size) == (len(expected), open_channel(plan, number).input_size)
            found = np.empty(len(expected), np.uint8)
            for begin in range(0, len(expected), 777):
                end = min(begin + 777, len(expected))
                channel.copy(begin, end, found, begin)
            assert found.tobytes() == expected
            chunks = sum(len(each.offsets) for each in sides if each is not None)
            headers = sum(each is not None for each in sides)
            assert fetches.bytes - before == len(expected) + 4 * (chunks + headers), "each byte was fetched once"
    assert streamed or stretch == 1 << 20


def test_a_chunk_that_is_not_as_long_as_its_handle_says_is_an_error(
    bucket: Bucket, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata alone says where chunks end; every length field is compared when it arrives."""
    monkeypatch.setattr(layouts, "STRETCH", 1000)
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    copy = checkpoint.copy(tmp_path / "source")
    opened = open_checkpoint(str(copy))
    columns = max((opened.columns(each, Side.INPUT) for each in opened.metadata.operators), key=len)
    piece = columns.slice(int(np.argmax(columns.size)))
    location = opened.resolve(piece.delegate)
    assert isinstance(location, FileLocation)
    file = Path(location.uri)
    data = bytearray(file.read_bytes())
    data[int(piece.offsets.numpy()[-1]) + 3] ^= 1
    file.unlink()
    file.write_bytes(data)
    plan = noted(checkpoint, bucket.upload(copy), tmp_path)
    with fetching(tmp_path), pytest.raises(CorruptChannelState, match="does not have the"):
        read_all(plan)


def read_all(plan: Plan) -> None:
    for number in range(len(plan.channels)):
        channel = open_whole(plan, number)
        channel.copy(0, channel.size, np.empty(channel.size, np.uint8))


@pytest.mark.parametrize("how", ["gone", "changed"])
def test_an_object_that_is_gone_or_changed_is_named(
    bucket: Bucket, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, how: str
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    plan = noted(checkpoint, bucket.upload(checkpoint.path), tmp_path)
    number = max(range(len(plan.channels)), key=lambda each: int(plan.channels.bytes[each]))
    layout = layout_of(plan, number, index_of(plan.metadata_sha256))
    assert layout is not None
    for uri in layout.uris:
        data = bucket.get(uri)
        bucket.delete(uri)
        if how == "changed":
            bucket.put(uri, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(SourceChanged, match=layout.uris[0]):
        LayoutReader(plan).read(number, np.array([0]), np.array([100]), memoryview(bytearray(100)))


def test_where_nothing_was_noted_there_is_no_layout(fixture_checkpoint: FixtureCheckpoints, tmp_path: Path) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    plan = noted(checkpoint, str(checkpoint.path), tmp_path)
    assert index_of(plan.metadata_sha256).objects
    use_index(plan.metadata_sha256, "")
    assert layout_of(plan, 0, index_of(plan.metadata_sha256)) is None
    assert not LayoutReader(plan).lasts(0)


def test_fetched_bytes_are_counted_from_any_thread() -> None:
    fetches = Fetches(Path())
    fetches.count(3)
    fetches.count(4)
    assert fetches.bytes == 7


def test_a_gap_that_is_longer_than_what_is_ignored_is_not_read(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads what nobody wants; a gap longer than the buffer for it would not even fit there."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    plan = noted(checkpoint, str(checkpoint.path), tmp_path)
    number = max(range(len(plan.channels)), key=lambda each: int(plan.channels.bytes[each]))
    data, asked = whole(plan, number), list[int]()
    monkeypatch.setattr(layouts, "LONGEST_IGNORED", 100)
    monkeypatch.setattr(layouts, "_IGNORED", memoryview(bytearray(100)))
    read = source_index.SourceIndex.read_into

    def counting(self: source_index.SourceIndex, uri: str, offset: int, targets: list[memoryview]) -> None:
        asked.append(sum(map(len, targets)))
        read(self, uri, offset, targets)

    monkeypatch.setattr(source_index.SourceIndex, "read_into", counting)
    starts, ends = np.array([0, 5000]), np.array([10, 5010])
    target = bytearray(20)
    LayoutReader(plan).read(number, starts, ends, memoryview(target))
    assert bytes(target) == data[:10] + data[5000:5010]
    assert sum(asked) == 20


def test_a_stream_of_another_version_is_an_error(
    bucket: Bucket, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "STRETCH", 1000)
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    copy = checkpoint.copy(tmp_path / "source")
    for file in copy.iterdir():
        if file.name != "_metadata":
            data = file.read_bytes()
            file.unlink()
            file.write_bytes(b"\x00\x00\x00\x01" + data[4:])
    plan = noted(checkpoint, bucket.upload(copy), tmp_path)
    with fetching(tmp_path), pytest.raises(CorruptChannelState, match="no stream of channel state"):
        read_all(plan)
