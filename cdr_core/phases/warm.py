"""Kernels loaded, and compiled where no cache has them yet: importing this runs each of the usual ones once.

Set-up imports it so that a first recovery compiles nothing; the worker daemon imports it before it forks, so that every
worker finds the kernels in memory instead of loading them one by one from the cache.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pyarrow as pa

import cdr_core.phases.commit
import cdr_core.phases.drain
import cdr_core.phases.filter
import cdr_core.phases.read
import cdr_core.phases.spill  # noqa: F401 # all five: a worker serves every phase
from cdr_core.errors import Where
from cdr_core.flink.channel_state import read_chunk_extents
from cdr_core.flink.decode import decode_values
from cdr_core.flink.keys import key_groups, key_place
from cdr_core.flink.paged import paged_windows
from cdr_core.flink.read_page import ReadPage
from cdr_core.flink.sorting import Sorter
from cdr_core.flink.types import parse_type
from cdr_core.flink.virtual_channel import ChannelBytes, Part, windows
from cdr_core.kernels import fingerprint, frames, stretches, tallying

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
        columns = [np.empty(1, np.int64) for _ in range(5)]
        carried, counts = np.zeros((1, frames.TAGS), np.uint8), np.zeros((3, frames.TAGS), np.int64)
        frames.select_runs(window.starts, window.ends, window.tags, lanes, carried, 0, 0, counts, *columns)
        frames.gather_runs(body, 0, columns[1], columns[2], np.empty(len(body), np.uint8))
        runs = np.frombuffer(np.array([0, len(body)], np.int64).tobytes(), np.int64)  # read-only, as a selection's are
        channel.gather(runs[:1], runs[1:], np.empty(len(body), np.uint8))
        frames.expand_positions(columns[3], columns[4], np.empty(1, np.int64))
        sums = np.zeros((1, fingerprint.FOLD_COLUMNS), np.uint64)
        fingerprint.fold_records(window.data, window.starts, window.ends, lanes, sums)
        for data in (window.data, body):  # a spill segment that was read back cannot be written to, and compiles apart
            kinds = np.zeros(frames.TAGS, np.int64)
            fingerprint.fold_elements(data, window.starts, window.ends, window.tags, sums, kinds)
            tallying.tally_frames(data, len(body), 1, sums, kinds)
        times, values = np.empty(1, np.int64), np.empty(1, np.int64)
        frames.element_times(window.data, window.starts, window.tags, times, values)
        description = parse_type(SAMPLE_TYPE)
        decode_values(description, window.data, values, window.ends)
        key_groups(description, ("f0",), window.data, values, window.ends, 128)
        place = key_place(description, ("f0",))
        assert place is not None, "a long in front of everything"
        with ReadPage(16) as page:
            found, _, _ = Sorter(page).sort(channel, 0, len(body), 0, place, np.zeros(128, np.int32), sums)
        stretches.note_stretches(window.ends, window.tags, lanes, 0, 0, 1, found)
        stretches.count_runs(found, carried, lanes)
        cursors, sizes = np.zeros((1, 2), np.int64), np.zeros((1, 2), np.int64)
        stretches.place_runs(found, 0, 0, carried, sizes, counts, cursors, np.empty((4, 2), np.int64))


_warm()
