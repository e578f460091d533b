"""Watermarks and their kin through the phases: kept, replicated, merged or dropped, and every one accounted for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdr_core.channels.channel_source import open_channel
from cdr_core.channels.closing_elements import Closings
from cdr_core.errors import Unbalanced
from cdr_core.flink.keys import key_groups, owner
from cdr_core.flink.types import parse_type
from cdr_core.kernels import frames
from cdr_core.metadata import Phase, Repository
from cdr_core.phases import filter as filter_phase
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.runtime.driver import PhaseRun
from cdr_core.runtime.unit_results import SpillResult
from tests.phases.keys import key_of
from tests.support import inline, output
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.spilled import SpilledPiece, spilled
from tests.support.written import (
    MAX_PARALLELISM,
    SPEC,
    attributes,
    internal_watermark,
    latency_marker,
    record,
    status,
    watermark,
    write_checkpoint,
)

Channel = tuple[int, int]


class Run:
    """A recovery up to its spill sets."""

    def __init__(self, checkpoint: str, spec: str, parallelism: str, to: Path) -> None:
        request = RecoveryRequest(checkpoint, spec, parallelism, f"parquet:{to}")
        self.repository, self.recovery, self.settings = inline.start(request)
        for phase in (Phase.READ, Phase.FILTER, Phase.SPILL):
            inline.run(self.repository, self.recovery, phase, self.settings)
        recovery = self.repository.recovery(self.recovery)
        self.drive = PhaseRun(self.repository, recovery, Phase.SPILL, recovery.epoch, self.settings)

    @property
    def others(self) -> Any:
        return inline.run(self.repository, self.recovery, Phase.FILTER, self.settings)["others"]

    def pieces(self) -> Iterator[SpilledPiece]:
        """Everything spilled, in drain order."""
        for result in self.drive.results(SpillResult):
            yield from spilled(self.drive.plan, result.manifest)

    def streams(self) -> dict[Channel, bytes]:
        """What is spilled for each new channel (new up, new down) of the one gate there is."""
        found: dict[Channel, bytes] = {}
        for piece in self.pieces():
            key = piece.new_up, piece.subtask
            found[key] = found.get(key, b"") + piece.body
        return found


def key_among(old: tuple[int, int], new: tuple[int, int]) -> int:
    """A key of one subtask at one parallelism and of another at another; both are (subtask, parallelism)."""
    for key in range(10_000):
        data = np.frombuffer(np.array([key], dtype=">i8").tobytes(), np.uint8)
        (group,) = key_groups(
            parse_type("LONG"), ("f0",), data, np.zeros(1, np.int64), np.full(1, 8, np.int64), MAX_PARALLELISM
        ).tolist()
        if (owner(group, old[1], MAX_PARALLELISM), owner(group, new[1], MAX_PARALLELISM)) == (old[0], new[0]):
            return key
    raise AssertionError("no such key")


EVERY_KIND = (
    watermark(7),
    latency_marker(),
    status(idle=True),
    attributes(),
    internal_watermark(8),
    status(idle=False),
)


@pytest.mark.parametrize("name", ["a_p3_thr0", "b_p3_thr0", "d_p4_thr0", "g_p7_thr0"])
def test_the_same_parallelism_leaves_every_channel_as_it_was_byte_for_byte(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, name: str
) -> None:
    checkpoint = fixture_checkpoint(name, 2)
    run = Run(str(checkpoint.path), str(checkpoint.spec), "same", tmp_path / "out")
    plan = run.drive.plan
    expected: dict[int, bytes] = {}
    for number in range(len(plan.channels)):
        source = open_channel(plan, number)
        data = np.empty(source.size, np.uint8)
        source.copy(0, source.size, data)
        if source.size:
            expected[number] = data.tobytes()
    found: dict[int, bytes] = {}
    for piece in run.pieces():
        number = piece.channel
        assert (piece.new_up, piece.subtask) == (plan.channels[number].up, plan.channels[number].down)
        found[number] = found.get(number, b"") + piece.body
    assert found == expected
    assert sum(run.others["kept"].values()) > 0
    assert run.others["written"] == run.others["kept"]
    assert run.others["merged"] == run.others["dropped"] == {}


def test_elements_of_a_channel_whose_records_are_divided_stay_in_place_at_every_owner(tmp_path: Path) -> None:
    """One to two: watermarks and statuses twice, each in its place; markers and attributes nowhere, but counted."""
    left, right = record(key_of(0, 2), "left"), record(key_of(1, 2), "right")
    stream = b"".join([left, EVERY_KIND[0], right, *EVERY_KIND[1:], left, left, right, watermark(9)])
    checkpoint = write_checkpoint(tmp_path / "chk", 1, 1, {(0, 0): stream})
    run = Run(checkpoint, SPEC.format(partitioner="hash"), "gen=1,slow=2", tmp_path / "out")
    staying = [EVERY_KIND[0], EVERY_KIND[2], EVERY_KIND[4], EVERY_KIND[5]]
    assert run.streams() == {
        (0, 0): b"".join([left, *staying, left, left, watermark(9)]),
        (0, 1): b"".join([staying[0], right, *staying[1:], right, watermark(9)]),
    }
    kept = {"watermark": 2, "watermark_status": 2, "internal_watermark": 1}
    assert run.others == {
        "kept": kept,
        "merged": {},
        "dropped": {"latency_marker": 1, "record_attributes": 1},
        "written": {kind: 2 * count for kind, count in kept.items()},
    }


def test_merged_channels_end_with_the_minimum_of_their_last_watermarks(tmp_path: Path) -> None:
    """Two to one: what is no record leaves the stream, and one watermark closes it."""
    one, other = record(key_of(0, 2), "one"), record(key_of(1, 2), "other")
    channels = {
        (0, 0): b"".join([watermark(1), one, watermark(30), *EVERY_KIND[1:4]]),
        (0, 1): b"".join([other, watermark(20), other, EVERY_KIND[5]]),
    }
    checkpoint = write_checkpoint(tmp_path / "chk", 1, 2, channels)
    run = Run(checkpoint, SPEC.format(partitioner="hash"), "gen=1,slow=1", tmp_path / "out")
    # The first feed is idle by its last word and does not hold the other back.
    assert run.streams() == {(0, 0): one + other + other + watermark(20)}
    assert run.others["merged"] == {"watermark": 3, "watermark_status": 2}
    assert run.others["dropped"] == {"latency_marker": 1, "record_attributes": 1}
    assert run.others["kept"] == run.others["written"] == {}
    (line,) = [line for line in run.repository.ledger(run.recovery, Phase.SPILL) if line["others"]]
    assert line["others"] == {"closing_watermark": 1}


@pytest.mark.parametrize(
    ("first", "second", "closing"),
    [
        ([watermark(30)], [watermark(20)], watermark(20)),
        ([watermark(30)], [], b""),
        ([watermark(30), status(idle=True)], [watermark(20), status(idle=True)], watermark(20) + status(idle=True)),
        ([status(idle=True)], [status(idle=True)], status(idle=True)),
        ([watermark(30), status(idle=True)], [], b""),
    ],
    ids=["minimum", "one without", "all idle", "idle without watermarks", "idle and silent"],
)
@pytest.mark.parametrize("partitioner", ["hash", "rebalance"])
def test_closing_elements_follow_the_rule_also_without_any_record(
    tmp_path: Path, partitioner: str, first: list[bytes], second: list[bytes], closing: bytes
) -> None:
    channels = {(0, 0): b"".join(first), (0, 1): b"".join(second)}
    checkpoint = write_checkpoint(tmp_path / "chk", 1, 2, channels)
    run = Run(checkpoint, SPEC.format(partitioner=partitioner), "gen=1,slow=1", tmp_path / "out")
    assert run.streams() == ({(0, 0): closing} if closing else {})
    result = inline.run_all(run.repository, run.recovery, run.settings)
    assert (result["verdict"], result["records"]) == ("balanced", 0)
    assert output.rows(tmp_path / "out") == []


def test_one_channel_can_be_replicated_to_one_owner_and_merged_at_another(tmp_path: Path) -> None:
    """Two to three by key: the middle subtask is fed by both, the outer ones by one each."""
    keys = {(old, new): key_among((old, 2), (new, 3)) for old, new in ((0, 0), (0, 1), (1, 1), (1, 2))}
    rows = {pair: record(key, f"{pair[0]} to {pair[1]}") for pair, key in keys.items()}
    channels = {
        (0, 0): b"".join([rows[0, 0], watermark(5), rows[0, 1], attributes()]),
        (0, 1): b"".join([rows[1, 1], rows[1, 2], watermark(4)]),
    }
    checkpoint = write_checkpoint(tmp_path / "chk", 1, 2, channels)
    run = Run(checkpoint, SPEC.format(partitioner="hash"), "gen=1,slow=3", tmp_path / "out")
    assert run.streams() == {
        (0, 0): rows[0, 0] + watermark(5),
        (0, 1): rows[0, 1] + rows[1, 1] + watermark(4),
        (0, 2): rows[1, 2] + watermark(4),
    }
    assert run.others["kept"] == run.others["written"] == {"watermark": 2}
    assert run.others["dropped"] == {"record_attributes": 1}
    inline.run_all(run.repository, run.recovery, run.settings)
    assert len(output.rows(tmp_path / "out")) == 4
    receipt = run.repository.receipt(run.recovery)
    assert receipt is not None
    assert receipt["other_elements"] == {**run.others, "closing": {"closing_watermark": 1}}


@pytest.mark.parametrize("parallelism", ["1", "2", "5"])
def test_every_other_element_of_a_real_checkpoint_is_accounted_for(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, parallelism: str
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    run = Run(str(checkpoint.path), str(checkpoint.spec), parallelism, tmp_path / "out")
    counted = sum(sum(run.others[name].values()) for name in ("kept", "merged", "dropped"))
    assert counted == sum(1 for element in checkpoint.oracle.elements if not element.is_record) > 0


def _start(tmp_path: Path) -> tuple[Repository, str, Any]:
    stream = record(key_of(0, 2)) + watermark(7) + record(key_of(1, 2)) + latency_marker()
    checkpoint = write_checkpoint(tmp_path / "chk", 1, 1, {(0, 0): stream})
    request = RecoveryRequest(
        checkpoint, SPEC.format(partitioner="hash"), "gen=1,slow=2", f"parquet:{tmp_path / 'out'}"
    )
    return inline.start(request)


def test_an_element_that_vanishes_in_the_filter_fails_it_with_the_channels_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, recovery, settings = _start(tmp_path)
    inline.run(repository, recovery, Phase.READ, settings)
    whole = filter_phase.execute

    def forgetful(*arguments: Any) -> Any:
        outcome = whole(*arguments)
        keep = outcome.columns["left_other_kinds"] != frames.TAG_LATENCY_MARKER
        names = ("left_other_lines", "left_other_kinds", "left_other_counts")
        return replace(outcome, columns={**outcome.columns, **{name: outcome.columns[name][keep] for name in names}})

    monkeypatch.setattr(filter_phase, "PHASE", replace(filter_phase.PHASE, execute=forgetful))
    with pytest.raises(Unbalanced, match="met 0 of kind latency_marker where there should be 1") as caught:
        inline.run(repository, recovery, Phase.FILTER, settings)
    assert (caught.value.where.exchange, caught.value.where.channel, caught.value.where.subtask) == ("main", 0, 0)


def test_a_closing_element_that_is_not_written_fails_the_spill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    channels = {(0, 0): watermark(3), (0, 1): watermark(4)}
    checkpoint = write_checkpoint(tmp_path / "chk", 1, 2, channels)
    request = RecoveryRequest(
        checkpoint, SPEC.format(partitioner="hash"), "gen=1,slow=1", f"parquet:{tmp_path / 'out'}"
    )
    repository, recovery, settings = inline.start(request)
    for phase in (Phase.READ, Phase.FILTER):
        inline.run(repository, recovery, phase, settings)
    monkeypatch.setattr(Closings, "of_subtask", lambda closings, _: Closings(*(closings.line[:0],) * 5))
    with pytest.raises(Unbalanced, match="wrote 0 of kind closing_watermark"):
        inline.run(repository, recovery, Phase.SPILL, settings)
