"""Spill sets of format 2 and cuts of version 1, as version 0.1.0 wrote them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdr_core.audit.ledger import NOTHING
from cdr_core.errors import Corrupt, Refused, SpillLost
from cdr_core.spill.earlier_formats import HEADER_BYTES, EarlierSet
from cdr_core.spill.set_reader import read_segment
from cdr_core.spill.spill_set import SpillSet
from tests.support.spill import NO_SOURCE
from tests.versions.frozen import ROOT, unpack, versions

FROZEN = ("0.1.0-ab93011", "per-checkpoint/listener.after+publish.after")
"""A recovery with two complete checkpoints that cut segments in the middle."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    [version] = [version for version in versions() if version.folder.name == FROZEN[0]]
    return unpack(version, tmp_path_factory.mktemp("frozen")) / FROZEN[1] / "root"


def load(path: Path, root: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text().replace(str(ROOT), str(root)))
    return found


@pytest.fixture
def manifest(root: Path) -> dict[str, Any]:
    return load(next(root.glob("**/spill/set-00001-*/manifest.json")), root)


@pytest.fixture
def old(manifest: dict[str, Any]) -> EarlierSet:
    return EarlierSet.from_json(manifest)


def present(old: EarlierSet) -> SpillSet:
    return old.to_present(old.columns["virtual_channel"], NOTHING)


def frame_ends(body: bytes) -> list[int]:
    """Where each element of a body ends."""
    ends, at = [], 0
    while at < len(body):
        at += 4 + int.from_bytes(body[at : at + 4], "big")
        ends.append(at)
    assert at == len(body)
    return ends


def cuts(root: Path) -> Iterator[tuple[EarlierSet, dict[str, Any]]]:
    for path in sorted(root.glob("**/checkpoints/*.json")):
        for cut in load(path, root)["cuts"].values():
            yield EarlierSet.from_json(load(Path(cut["body"]["manifest"]), root)), cut["body"]


def test_a_set_of_format_2_reads_as_one_of_the_present_format(old: EarlierSet) -> None:
    spill_set = present(old)
    assert spill_set.segments == len(old.columns["file"]) > 10
    positions: list[int] = []
    for number in range(spill_set.segments):
        segment = read_segment(spill_set, number, NO_SOURCE)
        assert segment.lines.tolist() == [old.columns["virtual_channel"][number]]
        assert len(frame_ends(segment.body.tobytes())) == segment.elements.sum() == len(segment.positions) > 0
        positions += segment.positions.tolist()
    assert old.positions is not None
    assert positions == np.fromfile(old.positions, "<i8").tolist()
    bodies = HEADER_BYTES * spill_set.segments + spill_set.bytes
    assert bodies == sum(file.bytes for file in spill_set.files)


def test_a_cut_had_delivered_the_elements_before_its_bytes(root: Path) -> None:
    """Both ways to say what is left, slices and a cursor, and both places, between segments and in one."""
    seen = set()
    for old, body in cuts(root):
        spill_set, remaining = present(old), body["remaining"]
        delivered = old.delivered_at(remaining, body["frames_done"])
        left = dict(enumerate(old.columns["length"].tolist()))
        file, offset, gate, _, rest = remaining["cursor"]
        parts = [(segment, at) for segment, at, _ in remaining["slices"]]
        for number, (of_file, begin) in enumerate(zip(old.columns["file"], old.columns["offset"], strict=True)):
            if (of_file, begin) >= (file, offset):
                parts.append((number, 0))
        if gate is not None:
            [opened] = np.flatnonzero(
                old.columns["offset"] + HEADER_BYTES + old.columns["length"] == offset + rest
            ).tolist()
            parts.append((opened, int(old.columns["length"][opened]) - rest))
        for segment, at in parts:
            left[segment] = min(left[segment], at)
        for segment, end in left.items():
            ends = frame_ends(read_segment(spill_set, segment, NO_SOURCE).body.tobytes())
            assert int(delivered[segment]) == sum(each <= end for each in ends)
        seen |= {gate is None, *(at > 0 for _, at, _ in remaining["slices"])}
        assert old.delivered_at(None, {}).tolist() == old.columns["records"].tolist()
    assert seen == {False, True}


def test_a_cursor_that_does_not_fit_its_set_is_an_error(old: EarlierSet) -> None:
    columns = old.columns
    starts = columns["offset"].tolist()
    count, size = len(starts), old.files[0].bytes

    def left(*cursor: int | None) -> int:
        """How many segments are not before a cursor."""
        return int((old.delivered_at({"version": 1, "slices": [], "cursor": list(cursor)}, {}) == 0).sum())

    assert [left(0, start, None, None, 0) for start in starts] == list(range(count, 0, -1))
    assert left(1, 0, None, None, 0) == 0
    others = {*range(200), *range(0, size, 37), *(s + d for s in starts for d in range(-2, 15)), size, -1}
    for offset in others - set(starts):
        with pytest.raises(Corrupt, match="another spill set"):
            left(0, offset, None, None, 0)
    gate, channel, length = (int(columns[name][1]) for name in ("gate", "channel", "length"))
    body = starts[1] + HEADER_BYTES
    for into in (1, length // 2, length - 1):
        assert left(0, body + into, gate, channel, length - into) == count - 1
    for into, unfit in [
        (0, (gate, channel, length)),
        (length, (gate, channel, 0)),
        (-1, (gate, channel, length + 1)),
        (5, (gate + 1, channel, length - 5)),
        (5, (gate, channel + 1, length - 5)),
        (5, (gate, channel, length - 4)),
    ]:
        with pytest.raises(Corrupt, match="another spill set"):
            left(0, body + into, *unfit)
    for cursor in [(1, 1, None, None, 0), (2, 0, None, None, 0), (1, 0, gate, channel, 0)]:
        with pytest.raises(Corrupt, match="another spill set"):
            left(*cursor)


def test_a_slice_that_does_not_fit_its_set_is_an_error(old: EarlierSet) -> None:
    length, count = int(old.columns["length"][2]), len(old.columns["file"])
    end = [len(old.files), 0, None, None, 0]
    fits = {"version": 1, "slices": [[2, 7, length - 7], [3, 0, 0]], "cursor": end}
    delivered, records = old.delivered_at(fits, {"2": 4}), old.columns["records"]
    assert np.flatnonzero(delivered != records).tolist() == [2]
    assert delivered[2] == 4
    for unfit in ([2, 0, length + 1], [2, length, 1], [2, -1, 2], [2, 3, -1], [-1, 0, 1], [count, 0, 1]):
        with pytest.raises(Corrupt, match="another spill set"):
            old.delivered_at({**fits, "slices": [unfit]}, {})
    with pytest.raises(Refused, match="version 2"):
        old.delivered_at({**fits, "version": 2}, {})


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "none"])
def test_damaged_positions_are_lost_and_never_fewer(manifest: dict[str, Any], tmp_path: Path, damage: str) -> None:
    data = Path(manifest["positions"]).read_bytes()
    copy = tmp_path / "positions"
    manifest["positions"] = None if damage == "none" else str(copy)
    for place in range(0, len(data), 101):
        flipped = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        copy.write_bytes({"flip": flipped, "truncate": data[:place]}.get(damage, b""))
        with pytest.raises(SpillLost, match="is damaged"):
            present(EarlierSet.from_json(manifest))
        if damage in ("empty", "none"):
            break
    copy.write_bytes(data + bytes(8))
    if damage != "none":
        with pytest.raises(Corrupt, match="belong to records"):
            present(EarlierSet.from_json(manifest))


def test_only_format_2_is_read(manifest: dict[str, Any]) -> None:
    for version in (1, 3):
        with pytest.raises(Refused, match=f"version {version}"):
            EarlierSet.from_json({**manifest, "version": version})
