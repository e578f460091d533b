"""Many small channels at once: their chunks, their frames, their ledger lines and their runs in one call each.

A channel of a large job holds a few hundred bytes, so a kernel call per channel costs more than the work. Here a batch
of channels lies in one buffer, one behind another, with the end of each; or its chunks are named by their addresses.
Doubtful channels are only marked: the reader of single channels then reports what is wrong.
"""

# What is an int to mypy has a machine type for numba, so these would be wrong either way.
# mypy: disable-error-code="untyped-decorator, misc, assignment, no-any-return, operator"

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

from cdr_core.kernels.byte_copy import copy_from
from cdr_core.kernels.fingerprint import FINGERPRINT_BYTES, ROW_BYTES, add_record, hash_words
from cdr_core.kernels.frames import (
    LENGTH_BYTES,
    OK,
    TAG_RECORD,
    TAG_WATERMARK,
    TAG_WATERMARK_STATUS,
    check_element,
)
from cdr_core.kernels.raw_memory import address_of, load_be32, load_be64, load_byte, store_be64

HEADER_BYTES = 4
"""Version that a channel-state stream begins with."""

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Tags = npt.NDArray[np.int8]
Words = npt.NDArray[np.uint64]


@njit(cache=True, nogil=True)
def locate_chunks(
    rows: Longs,
    stream: Ints,
    first: Longs,
    offsets: Longs,
    announced: Longs,
    bases: Longs,
    sizes: Longs,
    span_first: Longs,
    span_starts: Longs,
    span_ends: Longs,
    span_addresses: Longs,
    addresses: Longs,
    lengths: Longs,
    totals: Longs,
) -> None:
    """Fill the address and length of every chunk of the asked rows of handles, and per row the sum of the lengths.

    Row ``rows[i]`` (−1 = the channel has no state on this side) lists ``offsets[first[r]:first[r + 1]]`` of its stream,
    which begins at byte ``bases`` of its object and has ``sizes`` bytes. Of the object the stretches ``span_starts`` to
    ``span_ends`` are in memory at ``span_addresses``. ``totals`` is −1 for a row that only the careful way can judge:
    offsets that do not ascend, chunks beyond their stream or stretch, or another sum than ``announced`` (−1 = none),
    which has an entry for each row that is not −1.
    """
    at, asked = 0, 0
    for i in range(rows.shape[0]):
        row = rows[i]
        if row < 0:
            totals[i] = 0
            continue
        expected = announced[asked]
        asked += 1
        s = stream[row]
        base, size = bases[s], sizes[s]
        low, high = span_first[s], span_first[s + 1]
        reached, total = np.int64(HEADER_BYTES), np.int64(0)
        if size < HEADER_BYTES:
            total = np.int64(-1)
        for j in range(first[row], first[row + 1]):
            offset = offsets[j]
            addresses[at], lengths[at] = 0, 0
            if total >= 0 and reached <= offset <= size - LENGTH_BYTES:
                place = base + offset
                span = low + np.searchsorted(span_starts[low:high], place, side="right") - 1
                if span >= low and place + LENGTH_BYTES <= span_ends[span]:
                    where = span_addresses[span] + place - span_starts[span]
                    length: Any = np.int64(np.int32(load_be32(where, 0)))
                    inside = place + LENGTH_BYTES + length <= span_ends[span]
                    if length >= 0 and length <= size - LENGTH_BYTES - offset and inside:
                        addresses[at], lengths[at] = where + LENGTH_BYTES, length
                        reached = offset + LENGTH_BYTES + length
                        total += length
                    else:
                        total = np.int64(-1)
                else:
                    total = np.int64(-1)
            else:
                total = np.int64(-1)
            at += 1
        totals[i] = total if expected in (total, -1) else -1


@njit(cache=True, nogil=True)
def place_side(
    rows: Longs, first: Longs, addresses: Longs, lengths: Longs, at: Longs, address: Longs, length: Longs
) -> None:
    """Put the chunks of one side of every channel, as `locate_chunks` listed them, at the places ``at``, and advance
    these.

    A channel whose ``at`` is negative is left out.
    """
    source = 0
    for i in range(rows.shape[0]):
        if rows[i] < 0:
            continue
        count = first[rows[i] + 1] - first[rows[i]]
        if at[i] >= 0:
            for j in range(count):
                address[at[i] + j], length[at[i] + j] = addresses[source + j], lengths[source + j]
            at[i] += count
        source += count


@njit(cache=True, nogil=True)
def pack_chunks(address: Longs, length: Longs, target: Bytes) -> int:
    """Copy chunks one behind another; bytes copied."""
    at = 0
    for i in range(address.shape[0]):
        if at + length[i] > target.shape[0]:
            raise ValueError("chunks do not fit their target")
        copy_from(target, at, address[i], length[i])
        at += length[i]
    return at


@njit(cache=True, nogil=True)
def gather_runs(
    first: Longs,
    address: Longs,
    logical: Longs,
    channel: Longs,
    start: Longs,
    end: Longs,
    target: Bytes,
) -> int:
    """Copy runs of logical bytes [start, end) of channels one behind another; bytes copied.

    The chunks of channel c are ``first[c]`` to ``first[c + 1]``; chunk i begins at logical byte ``logical[i]`` of its
    channel. ``logical`` has one entry per chunk and one behind the last chunk of each channel, so channel c's entries
    begin at ``first[c] + c``.
    """
    at = 0
    for i in range(start.shape[0]):
        c = channel[i]
        begin, upto = start[i], end[i]
        low, high = first[c] + c, first[c + 1] + c
        if begin < 0 or upto < begin or upto > logical[high] or at + upto - begin > target.shape[0]:
            raise ValueError("a run does not lie in its channel, or does not fit its target")
        place = low + np.searchsorted(logical[low : high + 1], begin, side="right") - 1
        while begin < upto:
            count = min(upto, logical[place + 1]) - begin
            if count > 0:
                copy_from(target, at, address[place - c] + begin - logical[place], count)
                begin += count
                at += count
            place += 1
    return at


@njit(forceinline=True)
def _frame_end(memory: Any, at: int, limit: int) -> int:
    """Return the end of the whole and legal frame that begins at ``at``; −1 where there is none before ``limit``."""
    start = at + LENGTH_BYTES
    if start > limit:
        return -1
    length: Any = np.int64(np.int32(load_be32(memory, at)))
    if length < 1 or start + length > limit:
        return -1
    if check_element(memory, start, load_byte(memory, start), length) != OK:
        return -1
    return start + length


@njit(cache=True, nogil=True)
def scan_channels(data: Bytes, ends_of: Longs, starts: Longs, ends: Longs, tags: Tags, first: Longs) -> int:
    """Find the frames of channels that lie one behind another in ``data``, each up to ``ends_of``.

    Element i is ``data[starts[i]:ends[i]]``; those of channel c are ``first[c]`` to ``first[c + 1]``. Returns −1, or
    the first channel that is not made of whole frames. The arrays have room for the smallest possible frames.
    """
    memory, count, at = address_of(data), 0, 0
    for c in range(ends_of.shape[0]):
        first[c] = count
        limit = ends_of[c]
        while at < limit:
            start, end = at + LENGTH_BYTES, _frame_end(memory, at, limit)
            if end < 0:
                return c
            starts[count], ends[count], tags[count] = start, end, load_byte(memory, start)
            count += 1
            at = end
    first[ends_of.shape[0]] = count
    return -1


@njit(cache=True, nogil=True)
def fold_lines(
    data: Bytes,
    starts: Longs,
    ends: Longs,
    tags: Tags,
    first: Longs,
    lines: Longs,
    sums: Words,
    kinds: Longs,
    fingerprints: Bytes,
) -> None:
    """Add the elements ``first[i]`` to ``first[i + 1]`` to line ``lines[i]``: records to the row of ``sums``, other
    elements to ``kinds`` by tag.

    ``fingerprints`` is empty, or has 16 bytes for each element: a record's are filled with its hash words, big-endian.
    """
    memory, rows, filled = address_of(data), address_of(sums), address_of(fingerprints)
    wanted = fingerprints.shape[0] > 0
    for i in range(first.shape[0] - 1):
        line = lines[i]
        for j in range(first[i], first[i + 1]):
            if tags[j] <= TAG_RECORD:
                one, two = hash_words(memory, starts[j], ends[j])
                add_record(rows + ROW_BYTES * line, one, two, ends[j] - starts[j])
                if wanted:
                    store_be64(filled, FINGERPRINT_BYTES * j, one)
                    store_be64(filled, FINGERPRINT_BYTES * j + 8, two)
            else:
                kinds[line, tags[j]] += 1


@njit(cache=True, nogil=True)
def scan_lines(
    data: Bytes,
    ends_of: Longs,
    lines: Longs,
    starts: Longs,
    ends: Longs,
    tags: Tags,
    first: Longs,
    sums: Words,
    kinds: Longs,
    fingerprints: Bytes,
) -> int:
    """Do :func:`scan_channels` and :func:`fold_lines` together, in one pass over the bytes.

    There may be at most as many elements as ``starts`` has room for; a piece that has more counts as damaged.
    """
    memory, rows, filled = address_of(data), address_of(sums), address_of(fingerprints)
    count, at = 0, 0
    for p in range(ends_of.shape[0]):
        first[p] = count
        limit, line = ends_of[p], lines[p]
        while at < limit:
            start, end = at + LENGTH_BYTES, _frame_end(memory, at, limit)
            if end < 0 or count == starts.shape[0]:
                return p
            tag = load_byte(memory, start)
            starts[count], ends[count], tags[count] = start, end, tag
            if tag <= TAG_RECORD:
                one, two = hash_words(memory, start, end)
                add_record(rows + ROW_BYTES * line, one, two, end - start)
                store_be64(filled, FINGERPRINT_BYTES * count, one)
                store_be64(filled, FINGERPRINT_BYTES * count + 8, two)
            else:
                kinds[line, tag] += 1
            count += 1
            at = end
    first[ends_of.shape[0]] = count
    return -1


@njit(cache=True, nogil=True)
def last_words(
    data: Bytes, starts: Longs, tags: Tags, first: Longs, watermark: Longs, has_watermark: Tags, status: Longs
) -> None:
    """Store per channel the last watermark and the last watermark status; entries of channels without one stay
    unchanged.
    """
    memory = address_of(data)
    for c in range(first.shape[0] - 1):
        for j in range(first[c], first[c + 1]):
            if tags[j] == TAG_WATERMARK:
                watermark[c] = np.int64(load_be64(memory, starts[j] + 1))
                has_watermark[c] = 1
            elif tags[j] == TAG_WATERMARK_STATUS:
                status[c] = np.int64(np.int32(load_be32(memory, starts[j] + 1)))


@njit(cache=True, nogil=True)
def select_channels(
    data: Bytes,
    starts: Longs,
    ends: Longs,
    tags: Tags,
    first: Longs,
    begins: Longs,
    lanes: Longs,
    line_first: Longs,
    carried: Bytes,
    sums: Words,
    kinds: Longs,
    kept: Longs,
    left: Longs,
    latest: Longs,
    run_line: Longs,
    run_start: Longs,
    run_end: Longs,
    run_position: Longs,
    run_count: Longs,
) -> int:
    """Runs, folds and counts of whole channels; how many runs, which are in the order in which they begin.

    The elements of channel c are ``first[c]`` to ``first[c + 1]``, its bytes begin at ``data[begins[c]]``, and its
    lines are ``line_first[c]`` to ``line_first[c + 1]``. ``lanes[i]`` is the line a record belongs to; an
    element of another kind goes to every line that carries its tag. ``kept`` and ``left`` count by channel and tag the
    other elements that at least one line was given, and that none was. ``latest`` is scratch, one entry a line, all −1.
    """
    memory, rows, runs = address_of(data), address_of(sums), 0
    for c in range(first.shape[0] - 1):
        base = begins[c]
        for i in range(first[c], first[c + 1]):
            tag = tags[i]
            is_record = tag <= TAG_RECORD
            if is_record:
                low = line_first[c] + lanes[i]
                high = low + 1
                one, two = hash_words(memory, starts[i], ends[i])
                add_record(rows + ROW_BYTES * low, one, two, ends[i] - starts[i])
            else:
                low, high = line_first[c], line_first[c + 1]
            placed = False
            for line in range(low, high):
                if not is_record:
                    if carried[line, tag] == 0:
                        continue
                    kinds[line, tag] += 1
                    placed = True
                run = latest[line]
                begin = starts[i] - LENGTH_BYTES - base
                if run >= 0 and run_end[run] == begin:
                    run_end[run] = ends[i] - base
                    run_count[run] += 1
                    continue
                run_line[runs], run_start[runs], run_end[runs] = line, begin, ends[i] - base
                run_position[runs], run_count[runs] = i - first[c], 1
                latest[line] = runs
                runs += 1
            if placed:
                kept[c, tag] += 1
            elif not is_record:
                left[c, tag] += 1
    return runs


@njit(cache=True, nogil=True)
def tally_pieces(
    data: Bytes, begins: Longs, piece_ends: Longs, lines: Longs, sums: Words, kinds: Longs, elements: Longs
) -> int:
    """Fold pieces of whole frames, each into its line, in one pass over the bytes.

    ``elements`` is filled by piece. Returns −1, or the first piece that is not made of whole frames.
    """
    memory, rows = address_of(data), address_of(sums)
    for p in range(piece_ends.shape[0]):
        at, limit, line, count = begins[p], piece_ends[p], lines[p], 0
        while at < limit:
            start, end = at + LENGTH_BYTES, _frame_end(memory, at, limit)
            if end < 0:
                return p
            tag = load_byte(memory, start)
            if tag <= TAG_RECORD:
                one, two = hash_words(memory, start, end)
                add_record(rows + ROW_BYTES * line, one, two, end - start)
            else:
                kinds[line, tag] += 1
            count += 1
            at = end
        elements[p] = count
    return -1


@njit(cache=True, nogil=True)
def frame_chunks(data: Bytes, begins: Longs, ends: Longs, target: Bytes) -> None:
    """Write each stretch of ``data`` behind its length as a big-endian i32."""
    memory, at = address_of(data), 0
    for i in range(begins.shape[0]):
        length = ends[i] - begins[i]
        for k in range(LENGTH_BYTES):
            target[at + k] = (length >> (24 - 8 * k)) & 0xFF
        copy_from(target, at + LENGTH_BYTES, memory + begins[i], length)
        at += LENGTH_BYTES + length


@njit(cache=True, nogil=True)
def join_sums(group: Longs, sums: Words, powers: Words, joined: Words) -> None:
    """Join parts of sequences: row i continues the sequence ``group[i]``; ``powers[i]`` is CHAIN to its records."""
    for i in range(group.shape[0]):
        g = group[i]
        joined[g, 2] = joined[g, 2] * powers[i] + sums[i, 2]
        joined[g, 0] += sums[i, 0]
        joined[g, 1] += sums[i, 1]
        joined[g, 3] += sums[i, 3]
        joined[g, 4] += sums[i, 4]


@njit(cache=True, nogil=True)
def chain_powers(base: int, lengths: Words, powers: Words) -> None:
    """Compute ``base ** lengths[i]`` modulo 2**64."""
    for i in range(lengths.shape[0]):
        result, factor, left = uint64(1), uint64(base), lengths[i]
        while left > 0:
            if left & uint64(1):
                result *= factor
            factor *= factor
            left >>= uint64(1)
        powers[i] = result
