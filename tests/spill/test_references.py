"""Segments of which some pieces lie in the source: put together in order, each piece checked against its sum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest

from cdr_core.audit.ledger import NOTHING
from cdr_core.errors import CdrError, SourceChanged, SpillLost
from cdr_core.spill.set_reader import read_segment
from cdr_core.spill.set_writer import SetWriter
from cdr_core.spill.spill_set import References, SpillSet
from tests.support.spill import frames

SOURCE = {3: b"..." + frames([b"aa", b"b"]) + b"??" + frames([b"cccc"]), 5: frames([b"dd"]) + b"!"}
"""By line: its virtual channel."""
RANGES = {3: [(3, 16), (18, 27)], 5: [(0, 7)]}


class Source:
    """Virtual channels in memory."""

    def read(self, line: int, starts: Any, ends: Any, target: memoryview) -> None:
        target[:] = b"".join(SOURCE[line][a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True))

    def changed(self, line: int) -> CdrError:
        return SourceChanged(f"line {line} changed")


def referred(line: int) -> bytes:
    return b"".join(SOURCE[line][a:b] for a, b in RANGES[line])


def write(directory: Path, *segments: list[int | bytes]) -> SpillSet:
    """Each segment is pieces: a line of the source, or bytes that are stored for line 9."""
    with SetWriter(directory, 0, 1 << 20) as writer:
        for pieces in segments:
            bodies = [referred(piece) if isinstance(piece, int) else piece for piece in pieces]
            mine = [at for at, piece in enumerate(pieces) if isinstance(piece, int)]
            ranges = [RANGES[piece] for piece in pieces if isinstance(piece, int)]
            flat = np.array([pair for each in ranges for pair in each], np.int64).reshape(-1, 2)
            references = References(
                np.array(mine, np.int64),
                np.array([google_crc32c.value(bodies[at]) for at in mine], np.int64),
                np.cumsum([0, *map(len, ranges)]),
                flat[:, 0],
                flat[:, 1],
            )
            stored = b"".join(piece for piece in pieces if isinstance(piece, bytes))
            ones = np.ones(len(pieces), np.int64)
            writer.append(
                np.frombuffer(stored, np.uint8),
                np.array([piece if isinstance(piece, int) else 9 for piece in pieces]),
                np.array([len(body) for body in bodies]),
                ones,
                (ones, np.arange(len(pieces)), ones),
                references,
            )
        return SpillSet.from_json(writer.seal(NOTHING).to_json())


STORED = [frames([b"one"]), frames([b"three", b"four"])]
SEGMENTS: list[list[int | bytes]] = [
    [STORED[0], 3, STORED[1], 5, STORED[0]],
    [3],
    [STORED[1]],
    [5, 3, STORED[0]],
]


def test_pieces_come_in_order_wherever_they_lie(tmp_path: Path) -> None:
    spill_set = write(tmp_path / "s", *SEGMENTS)
    for number, pieces in enumerate(SEGMENTS):
        expected = [referred(piece) if isinstance(piece, int) else piece for piece in pieces]
        segment = read_segment(spill_set, number, Source())
        assert segment.body.tobytes() == b"".join(expected)
        assert segment.ends.tolist() == np.cumsum([len(each) for each in expected]).tolist()
    stored = [sum(len(piece) for piece in pieces if isinstance(piece, bytes)) for pieces in SEGMENTS]
    assert spill_set.stored_lengths.tolist() == stored
    assert (spill_set.bytes_on_disk, spill_set.bytes_by_reference) == (sum(stored), spill_set.bytes - sum(stored))
    assert sum(file.bytes for file in spill_set.files[:-1]) == sum(stored), "references take no room"


def test_a_set_of_references_alone_has_no_file_but_its_runs(tmp_path: Path) -> None:
    spill_set = write(tmp_path / "s", [3], [5])
    assert [Path(file.path).name for file in spill_set.files] == ["runs"]
    assert read_segment(spill_set, 1, Source()).body.tobytes() == referred(5)
    assert spill_set.bytes_on_disk == 0


@pytest.mark.parametrize("place", range(3, 16))
def test_a_byte_that_changed_in_the_source_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    spill_set = write(tmp_path / "s", *SEGMENTS)
    changed = bytearray(SOURCE[3])
    changed[place] ^= 1
    monkeypatch.setitem(SOURCE, 3, bytes(changed))
    with pytest.raises(SourceChanged, match="line 3"):
        read_segment(spill_set, 0, Source())
    read_segment(spill_set, 2, Source())


def test_a_stored_piece_between_references_is_checked_too(tmp_path: Path) -> None:
    spill_set = write(tmp_path / "s", *SEGMENTS)
    file = Path(spill_set.files[0].path)
    data = bytearray(file.read_bytes())
    data[0] ^= 1
    file.write_bytes(data)
    with pytest.raises(SpillLost):
        read_segment(spill_set, 0, Source())
    read_segment(spill_set, 1, Source())
