"""Kernels loaded, and compiled where no cache has them yet: importing this runs each of the usual ones once.

Set-up imports it so that a first recovery compiles nothing; the worker daemon imports it before it forks, so that every
worker finds the kernels in memory instead of loading them one by one from the cache.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa

import cdr_core.phases.commit
import cdr_core.phases.drain
import cdr_core.phases.filter
import cdr_core.phases.read
import cdr_core.phases.spill  # noqa: F401 # all five: a worker serves every phase
from cdr_core.audit.ledger import CHAIN_WORD
from cdr_core.audit.row_digest import RowDigest
from cdr_core.errors import Where
from cdr_core.flink.channel_columns import scan_columns
from cdr_core.flink.channel_state import read_chunk_extents
from cdr_core.flink.decode import decode_values
from cdr_core.flink.key_sorter import Sorter
from cdr_core.flink.keys import key_groups, key_place
from cdr_core.flink.metadata import (
    EMPTY_SEGMENT,
    Offsets,
    OperatorState,
    Side,
    SingleChannelHandle,
    SubtaskState,
)
from cdr_core.flink.paged_reader import paged_windows
from cdr_core.flink.read_page import ReadPage
from cdr_core.flink.types import parse_type
from cdr_core.flink.virtual_channel import ChannelBytes, Part, windows
from cdr_core.kernels import channel_batches, element_runs, fingerprint, frame_tally, frames

SAMPLE_TYPE = "TUPLE<LONG, INT, LONG, STRING>"
SAMPLE = b"\x00" + struct.pack(">qqiq", 1, 2, 3, 4) + b"\x03ab"
"""A record with a timestamp and a two-letter string."""


def _warm() -> None:
    body = np.frombuffer(struct.pack(">i", len(SAMPLE)) + SAMPLE, np.uint8)
    stream = np.frombuffer(bytes(4) + struct.pack(">i", len(body)) + body.tobytes(), np.uint8)
    read_chunk_extents(stream, np.array([4], np.int64))
    whole = Part(body, np.zeros(1, np.int64), np.array([len(body)], np.int64))
    channel = ChannelBytes((whole,), (), Where())
    with ReadPage(16) as page:
        list(paged_windows(channel, 0, len(body), 0, page, Path()))
    for window in windows(channel, 0, len(body), 0, 64):
        lanes = np.zeros(1, np.int64)
        pa.array(lanes)  # the first one loads pandas, where there is one: better once, before workers are forked
        carried, counts = np.zeros((1, frames.TAGS), np.uint8), np.zeros((3, frames.TAGS), np.int64)
        start, end, one = np.zeros(1, np.int64), np.array([len(body)], np.int64), np.ones(1, np.int64)
        frames.gather_runs(body, 0, start, end, np.empty(len(body), np.uint8))
        runs = np.frombuffer(np.array([0, len(body)], np.int64).tobytes(), np.int64)  # read-only, as a selection's are
        channel.gather(runs[:1], runs[1:], np.empty(len(body), np.uint8))
        frames.expand_positions(start, one, np.empty(1, np.int64))
        sums = np.zeros((1, fingerprint.FOLD_COLUMNS), np.uint64)
        fingerprint.fold_records(window.data, window.starts, window.ends, lanes, sums)
        for data in (window.data, body):  # a spill segment that was read back cannot be written to, and compiles apart
            kinds = np.zeros(frames.TAGS, np.int64)
            fingerprint.fold_elements(data, window.starts, window.ends, window.tags, sums, kinds)
            frame_tally.tally_frames(data, len(body), 1, sums, kinds)
        times, values = np.empty(1, np.int64), np.empty(1, np.int64)
        frames.element_times(window.data, window.starts, window.tags, times, values)
        description = parse_type(SAMPLE_TYPE)
        decode_values(description, window.data, values, window.ends)
        key_groups(description, ("f0",), window.data, values, window.ends, 128)
        place = key_place(description, ("f0",))
        assert place is not None, "a long in front of everything"
        with ReadPage(16) as page:
            found, _, _ = Sorter(page).sort(channel, 0, len(body), 0, place, np.zeros(128, np.int32), sums)
        element_runs.note_stretches(window.ends, window.tags, lanes, 0, 0, 1, found)
        element_runs.count_runs(found, carried, lanes)
        cursors, sizes = np.zeros((1, 2), np.int64), np.zeros((1, 2), np.int64)
        element_runs.place_runs(found, 0, 0, carried, sizes, counts, cursors, np.empty((4, 2), np.int64))


def _warm_batches() -> None:
    """Those that take many channels at once; arrays from files are read-only, and compile apart."""
    body = np.frombuffer(bytearray(struct.pack(">i", len(SAMPLE)) + SAMPLE), np.uint8)
    frozen = np.frombuffer(body.tobytes(), np.uint8)
    ends, zero, one = np.array([len(body)]), np.zeros(1, np.int64), np.ones(1, np.int64)
    starts, stops, tags, first = (
        np.empty(9, np.int64),
        np.empty(9, np.int64),
        np.empty(9, np.int8),
        np.zeros(2, np.int64),
    )
    sums, kinds = np.zeros((1, fingerprint.FOLD_COLUMNS), np.uint64), np.zeros((1, frames.TAGS), np.int64)
    for data in (body, frozen):
        channel_batches.scan_channels(data, ends, starts, stops, tags, first)
        channel_batches.fold_lines(
            data, starts[:1], stops[:1], tags[:1], first, zero, sums, kinds, np.empty(16, np.uint8)
        )
        columns = (starts, stops, tags, first, sums, kinds, np.empty(9 * 16, np.uint8))
        channel_batches.scan_lines(data, ends, zero, *columns)
        channel_batches.last_words(data, starts[:1], tags[:1], first, zero, np.zeros(1, np.int8), one)
        channel_batches.tally_pieces(data, zero, ends, zero, sums, kinds, np.zeros(1, np.int64))
    carried, runs = np.zeros((1, frames.TAGS), np.uint8), np.empty((5, 1), np.int64)
    kept, left = np.zeros((1, frames.TAGS), np.int64), np.zeros((1, frames.TAGS), np.int64)
    channel_batches.select_channels(
        body, starts[:1], stops[:1], tags[:1], first, np.zeros(1, np.int64), np.zeros(1, np.int64), np.array([0, 1]),
        carried, sums, kinds, kept, left, np.full(1, -1), *runs,
    )  # fmt: skip
    address, target = np.array([body.__array_interface__["data"][0]]), np.empty(len(body), np.uint8)
    channel_batches.pack_chunks(address, ends, target)
    logical = np.array([0, len(body)])
    channel_batches.gather_runs(
        np.array([0, 1]), address, logical, np.zeros(1, np.int64), np.zeros(1, np.int64), ends, target
    )
    powers = np.empty(1, np.uint64)
    channel_batches.chain_powers(CHAIN_WORD, np.ones(1, np.uint64), powers)
    channel_batches.join_sums(np.zeros(1, np.int64), sums, powers, sums.copy())


def _warm_rows() -> None:
    """Those that write a table's rows and read them back."""
    count = 2
    texts, longs = pa.array(["a", None]), pa.array(np.zeros(count, np.int64))
    lists = pa.array([[1], None])
    batch = pa.record_batch({"a": texts, "b": longs, "c": lists, "d": pa.nulls(count)})
    fixed = pa.array([bytes(16)] * count, pa.binary(16))
    digest = RowDigest()
    digest.add(batch.append_column("e", fixed).append_column("f", pa.array([Decimal(1)] * count)))
    assert digest.hex, "the digest of two rows"
    words = np.frombuffer(fixed.buffers()[1], np.uint8)
    sums = np.zeros((1, fingerprint.FOLD_COLUMNS), np.uint64)
    fingerprint.fold_fingerprints(words, np.zeros(count, np.int64), np.zeros(count, np.int64), sums)
    fingerprint.first_other(words, np.zeros(2, np.int64), words)


def _warm_handles() -> None:
    handle = SingleChannelHandle(0, 0, 0, Offsets.of([4]), 8, EMPTY_SEGMENT)
    columns = scan_columns(OperatorState("", 1, 1, subtasks=(SubtaskState(0, input_channels=[handle]),)), Side.INPUT)
    assert columns is not None, "a plain handle"
    columns.find(0, 0, 0)


def _warm_generate() -> None:
    from cdr_core.synthetic import ExchangeShape, Shape, Spread, generate

    exchange = ExchangeShape("warm", "up", 0, "down", 0, Spread.KEYED, parse_type(SAMPLE_TYPE), ("f0",))
    generate(Shape((exchange,), {"up": 1, "down": 1}, bytes=1000, seed=1, keys=1), lambda _: BytesIO())


_warm()
_warm_batches()
_warm_rows()
_warm_handles()
if __name__ == "__main__":
    _warm_generate()  # in set-up; a worker never generates
