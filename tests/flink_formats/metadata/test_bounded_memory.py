"""Files made of the smallest possible things: what they become in memory is bounded by their size."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable

import pytest

from cdr_core.errors import CorruptMetadata
from cdr_core.flink.metadata import MergedChannelHandle, SubtaskState, channels, cursor, read_metadata
from cdr_core.flink.metadata.writer import encode_metadata
from tests.flink_formats.metadata import samples
from tests.flink_formats.metadata.samples import header, one_subtask

_pack = struct.pack
_BODY = _pack(">iibb", 0, 0, 0, 0)


def _keyed(handle: bytes) -> bytes:
    return one_subtask(_pack(">ii", 0, 0) + handle + b"\x00" + _pack(">ii", 0, 0))


def _channels(number: int, handle: bytes) -> bytes:
    return one_subtask(_BODY + _pack(">i", number) + handle * number + _pack(">i", 0))


def _operator(number: int, subtasks: bytes) -> bytes:
    return header(3) + _pack(">ii", 0, 1) + bytes(16) + _pack(">iibi", number, number, 0, number) + subtasks


def _changelog(number: int, handle: bytes) -> bytes:
    return _keyed(_pack(">biiqi", 8, 0, 0, 0, number) + handle * number + _pack(">iqh", 0, 0, 0))


def _files(number: int, file: bytes) -> bytes:
    return _keyed(_pack(">bqhiibi", 5, 0, 0, 0, 0, 0, number) + file * number + _pack(">i", 0))


_WIDE = _pack(">H", 60_006) + b"\xed\xa0\xbd\xed\xb8\x80" + b"a" * 60_000 + b"\x00"

DENSE: dict[str, Callable[[int], bytes]] = {
    "finished subtasks": lambda n: _operator(n // 4, b"".join(_pack(">i", -i - 1) for i in range(n // 4))),
    "subtasks": lambda n: _operator(n // 22, b"".join(_pack(">iiibbii", i, 0, 0, 0, 0, 0, 0) for i in range(n // 22))),
    "operators": lambda n: (
        header(3) + _pack(">ii", 0, n // 29) + b"".join(_pack(">QQiibi", 0, i, 0, 0, 0, 0) for i in range(n // 29))
    ),
    "master states": lambda n: (
        header(3) + _pack(">i", n // 18) + _pack(">IiihI", 0xC96B1696, 10, 1000, 0, 0) * (n // 18) + _pack(">i", 0)
    ),
    "null files": lambda n: _files(n // 3, bytes(3)),
    "inline files": lambda n: _files(n // 9, b"\x00\x00\x01" + bytes(6)),
    "wide strings": lambda n: _files(n // len(_WIDE), _WIDE),
    "null handles": lambda n: _changelog(n, b"\x00"),
    "key groups": lambda n: _changelog(n // 10, _pack(">biib", 3, 1000, 0, 0)),
    "incrementals": lambda n: _changelog(n // 31, _pack(">bqhiibii", 5, 1000, 0, 1000, 1000, 0, 0, 0)),
    "changes in memory": lambda n: _changelog(n // 31, _pack(">biiqqih", 9, 1000, 1000, 1000, 1000, 0, 0)),
    "changes": lambda n: _keyed(
        _pack(">biiqqi", 9, 0, 0, 0, 0, n // 9) + _pack(">iib", 999, 1, 1) * (n // 9) + bytes(2)
    ),
    "change streams": lambda n: _keyed(_pack(">biii", 10, 0, 0, n // 9) + _pack(">qb", 999, 0) * (n // 9) + bytes(18)),
    "operator states": lambda n: one_subtask(_pack(">ibi", 1, 4, n // 7) + bytes(7) * (n // 7) + bytes(15)),
    "single channels": lambda n: _channels(n // 26, _pack(">biiiiqb", 1, 999, 999, 999, 0, 999, 0)),
    "merged handles": lambda n: _channels(n // 22, _pack(">biqbii", 3, 999, 999, 0, 4, 0)),
    "merged channels": lambda n: _channels(
        1, _pack(">biqbii", 3, 0, 0, 0, 4 + 20 * (n // 20), n // 20) + _pack(">iiqi", 999, 999, 999, 0) * (n // 20)
    ),
    "offsets": lambda n: _channels(1, _pack(">biiii", 1, 0, 0, 0, n // 8) + bytes(n // 8 * 8) + bytes(9)),
}


@pytest.fixture(params=["by kernels", "by Python"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files are read by Python alone."""
    if request.param == "by kernels":
        monkeypatch.setattr(channels, "KERNELS_FROM", 0)


@pytest.mark.parametrize("size", [50_000, 200_000])
@pytest.mark.parametrize("kind", DENSE)
def test_values_take_no_more_memory_than_the_input_and_the_allowance(
    kind: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The allowance is 64 MiB; a smaller one shows the same with smaller files.
    allowance = 1 << 20
    monkeypatch.setattr(cursor, "MEMORY_ABOVE_INPUT", allowance)
    data = DENSE[kind](size)
    _assert_read_or_refused(DENSE[kind](1000))  # loads the kernels
    tracemalloc.start()
    try:
        _assert_read_or_refused(data)
        assert tracemalloc.get_traced_memory()[1] < len(data) + allowance
    finally:
        tracemalloc.stop()


def _assert_read_or_refused(data: bytes) -> None:
    refusal = ""
    try:
        read_metadata(data)
    except CorruptMetadata as error:
        refusal = error.what
    assert not refusal or "more values than" in refusal


@pytest.mark.parametrize("kind", DENSE)
def test_dense_files_within_the_allowance_are_read_and_written_back_exactly(kind: str) -> None:
    data = DENSE[kind](100_000)
    assert encode_metadata(read_metadata(data)) == data


def test_a_file_with_300_000_offsets_is_read_in_less_than_a_second() -> None:
    data = DENSE["offsets"](8 * 300_000)
    before = time.process_time()
    assert encode_metadata(read_metadata(data)) == data
    assert time.process_time() - before < 1


def test_a_large_job_is_read_without_trouble() -> None:
    """Parallelism 300 with all-to-all channels: 90 000 in one operator."""
    part = _pack(">iiqiq", 0, 0, 9, 1, 4) * 300
    subtask = _BODY + _pack(">ibiqbii", 1, 3, 0, 9, 16, 4 + len(part), 300) + part + _pack(">i", 0)
    data = _operator(300, b"".join(_pack(">i", i) + subtask for i in range(300)))
    read = read_metadata(_as_version_6(data))
    number = 0
    for subtask_state in read.operators[0].subtasks:
        assert isinstance(subtask_state, SubtaskState)
        (handle,) = subtask_state.input_channels
        assert isinstance(handle, MergedChannelHandle)
        number += len(handle.channels)
    assert number == 90_000


def _as_version_6(data: bytes) -> bytes:
    """A version 3 file with empty names and null properties."""
    return header(6) + data[16:24] + bytes(4) + data[24:] + samples.NULL_PROPERTIES
