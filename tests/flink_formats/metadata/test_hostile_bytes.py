"""Damaged and malicious files: a clean error, or a value that is written back to exactly those bytes."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdr_core.errors import CorruptMetadata
from cdr_core.flink.metadata import SubtaskState, cursor, read_metadata
from cdr_core.flink.metadata.writer import encode_metadata
from tests.flink_formats.metadata import samples
from tests.flink_formats.metadata.conftest import RealCheckpoint
from tests.flink_formats.metadata.samples import header, metadata, one_subtask, operator

EXAMPLES = 2500
SEEDS = [
    encode_metadata(samples.everything()),
    encode_metadata(samples.legacy()),
    encode_metadata(metadata(operator(SubtaskState(1, input_channels=[samples.CHANNEL_HANDLES["single"]])), version=3)),
    encode_metadata(metadata(operator(SubtaskState(0)), version=4)),
]
INTERESTING = [
    b"\x00",
    b"\xff",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xc0\x80",
    b"\x03",
    b"\x08",
]

_pack = struct.pack


def _assert_clean_or_exact(data: bytes) -> None:
    try:
        value = read_metadata(data, checkpoint="chk")
    except CorruptMetadata as error:
        where = error.where
    else:
        assert encode_metadata(value) == data
        return
    assert where.checkpoint == "chk"
    assert where.offset is not None
    assert 0 <= where.offset <= len(data)


_edits = st.lists(
    st.tuples(
        st.integers(0, 1 << 16), st.integers(0, 8), st.one_of(st.sampled_from(INTERESTING), st.binary(max_size=8))
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(SEEDS), _edits)
def test_a_mutated_file_is_a_clean_error_or_is_written_back_exactly(
    seed: bytes, edits: list[tuple[int, int, bytes]]
) -> None:
    data = seed
    for place, removed, inserted in edits:
        at = place % (len(data) + 1)
        data = data[:at] + inserted + data[at + removed :]
    _assert_clean_or_exact(data)


@settings(max_examples=EXAMPLES // 4, deadline=None)
@given(st.integers(2, 6), st.binary(max_size=200))
def test_random_bytes_after_the_header_are_a_clean_error_or_are_written_back_exactly(version: int, rest: bytes) -> None:
    _assert_clean_or_exact(header(version) + rest)


@pytest.mark.parametrize("seed", range(len(SEEDS)))
def test_every_single_changed_byte_is_a_clean_error_or_is_written_back_exactly(seed: int) -> None:
    data = SEEDS[seed]
    for at in range(len(data)):
        for flip in (0x01, 0x80):
            _assert_clean_or_exact(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])


@pytest.mark.parametrize("seed", range(len(SEEDS)))
def test_a_file_cut_at_any_byte_is_an_error(seed: int) -> None:
    for length in range(len(SEEDS[seed])):
        with pytest.raises(CorruptMetadata):
            read_metadata(SEEDS[seed][:length])


def test_a_real_file_cut_at_any_byte_is_an_error(real_checkpoints: dict[str, RealCheckpoint]) -> None:
    data = real_checkpoints["a_p3_thr0/chk-1"].metadata
    for length in range(len(data)):
        with pytest.raises(CorruptMetadata):
            read_metadata(data[:length])


@pytest.mark.parametrize("seed", range(len(SEEDS)))
def test_bytes_after_the_end_are_an_error(seed: int) -> None:
    with pytest.raises(CorruptMetadata, match="follow"):
        read_metadata(SEEDS[seed] + b"\x00")


@pytest.mark.parametrize("version", [-1, 0, 1, 7, 2**31 - 1])
def test_a_version_that_is_not_readable_is_named(version: int) -> None:
    with pytest.raises(CorruptMetadata, match=f"version {version} "):
        read_metadata(header(version) + bytes(8))


def test_an_error_names_operator_subtask_and_byte_offset() -> None:
    data = one_subtask(_pack(">iibb", 0, 0, 99, 0) + bytes(8))
    with pytest.raises(CorruptMetadata, match="99 is not the tag") as caught:
        read_metadata(data)
    where = caught.value.where
    assert (where.operator, where.subtask) == (samples.OPERATOR_ID, 0)
    assert where.offset is not None
    assert data[where.offset] == 99


def _nested_changelog(depth: int) -> bytes:
    """A keyed handle of ``depth`` changelogs, one inside the other."""
    handle = b"\x00"
    for _ in range(depth):
        handle = _pack(">biiqi", 8, 0, 1, 0, 1) + handle + _pack(">iqh", 0, 0, 0)
    return handle


def _nested_stream(depth: int) -> bytes:
    return _pack(">bii", 3, 0, 0) * depth + b"\x00"


@pytest.mark.parametrize("build", [_nested_changelog, lambda depth: _pack(">bii", 3, 0, 0) + _nested_stream(depth - 1)])
def test_nesting_is_read_to_a_bound_and_refused_beyond_it(build: Callable[[int], bytes]) -> None:
    def file(depth: int) -> bytes:
        return one_subtask(_pack(">ii", 0, 0) + build(depth) + b"\x00" + _pack(">ii", 0, 0))

    assert encode_metadata(read_metadata(file(cursor.MAX_DEPTH))) == file(cursor.MAX_DEPTH)
    for depth in (cursor.MAX_DEPTH + 1, 20_000):
        with pytest.raises(CorruptMetadata, match="nested"):
            read_metadata(file(depth))


_BODY = _pack(">iibb", 0, 0, 0, 0)
_HUGE = 2**31 - 1


@pytest.mark.parametrize(
    "data",
    [
        header() + _pack(">i", _HUGE),
        header() + _pack(">ii", 0, _HUGE),
        header() + _pack(">ii", 0, 1) + bytes(20) + _pack(">iibi", _HUGE, _HUGE, 0, _HUGE) + bytes(64),
        one_subtask(_BODY + _pack(">i", _HUGE) + bytes(64)),
        one_subtask(_BODY + _pack(">ibiiii", 1, 1, 0, 0, 0, _HUGE) + bytes(64)),
        one_subtask(_BODY + _pack(">ibiqbii", 1, 3, 0, 0, 0, 4, _HUGE) + bytes(64)),
        one_subtask(_BODY + _pack(">ibiqbii", 1, 3, 0, 0, 0, _HUGE, 0) + bytes(64)),
        one_subtask(_pack(">ibi", 1, 4, _HUGE) + bytes(64)),
        one_subtask(_pack(">iibii", 0, 0, 3, 0, _HUGE) + bytes(64)),
        one_subtask(_pack(">iibqhiibi", 0, 0, 5, 0, 0, 0, 0, 0, _HUGE) + bytes(64)),
        one_subtask(_pack(">iibiiqi", 0, 0, 8, 0, 0, 0, _HUGE) + bytes(64)),
        one_subtask(_pack(">iibiiqqi", 0, 0, 9, 0, 0, 0, 0, _HUGE) + bytes(64)),
        one_subtask(_pack(">iibiii", 0, 0, 10, 0, 0, _HUGE) + bytes(64)),
        header() + _pack(">iii", 1, 0xC96B1696 - (1 << 32), _HUGE) + bytes(64),
    ],
)
def test_a_count_is_not_believed_before_its_bytes_are_known_to_be_there(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptMetadata, match="announced where only"):
            read_metadata(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("2 operator-state handles", one_subtask(_pack(">iiibb", 2, 0, 0, 0, 0) + bytes(8))),
        ("3 is not a way to distribute", one_subtask(_pack(">ibihbi", 1, 4, 1, 0, 3, 0) + bytes(15))),
        ("a boolean is 2", one_subtask(_pack(">ibihhbb", 1, 17, 0, 0, 0, 2, 16) + bytes(14))),
        ("in no segment", one_subtask(_pack(">ibihhbb", 1, 17, 0, 0, 0, 0, 0) + bytes(14))),
        ("the first key group is -1", one_subtask(_pack(">iibii", 0, 0, 3, -1, 0) + bytes(10))),
        (
            "2 is not the tag of an input channel handle",
            one_subtask(_BODY + _pack(">ibiiiiqb", 1, 2, 0, 0, 0, 0, 0, 0) + bytes(4)),
        ),
        (
            "merged channels take 4 bytes, announced are 5",
            one_subtask(_BODY + _pack(">ibiqbiib", 1, 3, 0, 0, 0, 5, 0, 0) + bytes(4)),
        ),
        ("the checkpoint id is -1", header(3, -1) + bytes(8)),
        ("the number of operators is -1", header(3) + _pack(">ii", 0, -1)),
        ("a master state starts with 00000000", header(3) + _pack(">iii", 1, 0, 10) + bytes(14)),
        ("a master state takes 10 bytes, announced are 11", header(3) + _pack(">iIi", 1, 0xC96B1696, 11) + bytes(15)),
        (
            "parallelism 2 is not within 0 and 1",
            header(3) + _pack(">ii", 0, 1) + bytes(16) + _pack(">iibi", 2, 1, 0, 0),
        ),
        (
            "2 subtasks at parallelism 1",
            header(3) + _pack(">ii", 0, 1) + bytes(16) + _pack(">iibiii", 1, 9, 0, 2, -1, -2),
        ),
        ("subtask indexes repeat", header(3) + _pack(">ii", 0, 1) + bytes(16) + _pack(">iibiii", 2, 9, 0, 2, -1, -1)),
        ("beyond parallelism 2", header(3) + _pack(">ii", 0, 1) + bytes(16) + _pack(">iibii", 2, 9, 0, 1, -3)),
        ("appears twice", header(3) + _pack(">ii", 0, 2) + (bytes(16) + _pack(">iibi", 2, 9, 0, 0)) * 2),
        (
            "coordinator state is not inline",
            header(3) + _pack(">ii", 0, 1) + bytes(16) + _pack(">iibhqi", 2, 9, 6, 0, 0, 0),
        ),
        (
            "a finished operator has coordinator state",
            header(3) + _pack(">ii", 0, 1) + bytes(16) + _pack(">iibhii", 2, 9, 1, 0, 0, -1),
        ),
        (
            "1 states from before Flink 1.3",
            header(2) + _pack(">ii", 0, 1) + bytes(16) + _pack(">iiiiiqi", 2, 9, 0, 1, 0, 0, 1) + bytes(10),
        ),
        ("the number of subtasks is -1", header(2) + _pack(">ii", 0, 1) + bytes(16) + _pack(">iiii", 2, 9, 0, -1)),
    ],
)
def test_what_flink_could_not_read_or_we_could_not_write_back_is_refused(what: str, data: bytes) -> None:
    with pytest.raises(CorruptMetadata, match=what):
        read_metadata(data)
