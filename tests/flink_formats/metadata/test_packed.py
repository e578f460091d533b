"""Compact sequences behave like the tuples they stand for."""

from __future__ import annotations

import numpy as np
import pytest

from cdr_core.flink.metadata import MergedChannelHandle, Offsets, SubtaskState, read_metadata, write_metadata
from tests.flink_formats.metadata.samples import CHANNEL_HANDLES, metadata, operator

MERGED = CHANNEL_HANDLES["merged"]


def test_offsets_are_equal_and_hash_equal_if_their_numbers_are() -> None:
    numbers = [4, -1, 2**63 - 1]
    assert Offsets.of(numbers) == Offsets.of(np.array(numbers)) != Offsets.of([4])
    assert hash(Offsets.of(numbers)) == hash(Offsets.of(tuple(numbers)))
    assert list(Offsets.of(numbers)) == numbers == Offsets.of(numbers).numpy().tolist()
    assert (Offsets.of(numbers)[0], Offsets.of(numbers)[-1], len(Offsets.of(numbers))) == (4, 2**63 - 1, 3)
    with pytest.raises(IndexError):
        Offsets.of(numbers)[3]
    with pytest.raises(ValueError, match="whole number"):
        Offsets(b"1234567")


def test_a_long_list_shows_only_its_beginning() -> None:
    assert repr(Offsets.of([4, 5])) == "Offsets.of([4, 5])"
    assert repr(Offsets.of(range(9))) == "Offsets.of([0, 1, 2, 3, 4, 5, 6, 7, …])"


def test_a_packed_list_has_length_items_and_slices() -> None:
    assert isinstance(MERGED, MergedChannelHandle)
    channels = MERGED.channels
    assert len(channels) == 2
    assert channels[-1] == tuple(channels)[1]
    assert channels[:1] == tuple(channels)[:1]
    assert repr(channels) == repr(tuple(channels))
    assert channels[0] in channels


def test_a_list_read_from_an_older_version_equals_a_handmade_one() -> None:
    value = SubtaskState(1, input_channels=[CHANNEL_HANDLES["single"]])
    for version in (3, 6):
        read = read_metadata(write_metadata(metadata(operator(value), version=version))).operators[0].subtasks[0]
        assert read == value
        assert hash(read) == hash(value)
    assert value != SubtaskState(1, output_channels=[CHANNEL_HANDLES["single"]])
    assert value.input_channels != (CHANNEL_HANDLES["single"],), "a tuple is another kind of sequence"
