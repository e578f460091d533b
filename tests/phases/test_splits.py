"""One huge channel: several units of work in the filter, and never more of it in memory than a split."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from cdr_core.channels import batch_selection as select_batch
from cdr_core.channels.batch_scan import framed
from cdr_core.channels.channel_selection import Selector
from cdr_core.errors import Unbalanced
from cdr_core.flink.key_sorter import Sorter
from cdr_core.flink.virtual_channel import Window
from cdr_core.metadata import Phase, RecoveryState
from cdr_core.phases import filter as filter_phase
from cdr_core.phases import read as read_phase
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.runtime.driver import PhaseRun
from cdr_core.runtime.phase_outputs import scanned_by
from cdr_core.runtime.unit_results import FilterResult
from cdr_core.runtime.units import ReadUnit
from tests.support import inline, output
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.generated import KEYED, generated

MIB = 1024 * 1024


@pytest.fixture
def huge(tmp_path: Path) -> str:
    """A checkpoint whose in-flight data is one channel of 40 MB, cut by key into two."""
    return generated(tmp_path / "chk", "gen=1,slow=1", "40MB", record_bytes="100-1000", keys=10_000)


class Metered(inline.InlineWorkers):
    """Notes the most memory that any unit held at once, beyond what was there before it."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0

    def run(self, drive: PhaseRun, payload: str, units: Any, on_poll: Any) -> None:
        for unit in units:
            tracemalloc.start()
            try:
                super().run(drive, payload, [unit], on_poll)
                self.peak = max(self.peak, tracemalloc.get_traced_memory()[1])
            finally:
                tracemalloc.stop()


def test_one_huge_channel_is_several_units_of_the_filter(huge: str, tmp_path: Path) -> None:
    """Its splits begin and end on element borders, cover it without a gap, and join to the very same ledger."""
    request = RecoveryRequest(huge, KEYED, "gen=1,slow=2", f"parquet:{tmp_path / 'out'}")
    repository, recovery, settings = inline.start(request)
    reading, filtering = Metered(), Metered()
    inline.run(repository, recovery, Phase.READ, settings, reading)
    inline.run(repository, recovery, Phase.FILTER, settings, filtering)
    drive = PhaseRun(repository, repository.recovery(recovery), Phase.FILTER, 0, settings)
    scanned = scanned_by(drive)
    (size,) = scanned.channels["size"].tolist()
    assert len(filtering.done) == len(scanned.splits["split_start"]) == -(-size // settings.split_size) == 3
    borders = [0, *scanned.splits["split_end"].tolist()]
    assert scanned.splits["split_start"].tolist() == borders[:-1]
    assert borders[-1] == size
    assert max(reading.peak, filtering.peak) < settings.split_size == 16 * MIB
    results = drive.results(FilterResult)
    assert sum(result.page.bytes for result in results) == size
    assert [result.page.allocations for result in results] == [1, 1, 1]


def test_a_channel_that_passes_through_is_not_held_in_memory_either(huge: str, tmp_path: Path) -> None:
    request = RecoveryRequest(huge, KEYED, "same", f"parquet:{tmp_path / 'out'}")
    repository, recovery, settings = inline.start(request)
    inline.run(repository, recovery, Phase.READ, settings)
    workers = Metered()
    inline.run(repository, recovery, Phase.FILTER, settings, workers)
    assert len(workers.done) == 3
    assert workers.peak < MIB, "not even framed again: one run a split"


@pytest.mark.parametrize("split_size", ["20kB", "100kB"])
def test_the_size_of_splits_changes_nothing_in_the_result(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split_size: str
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    ledgers = []
    for size in ("16MiB", split_size):
        monkeypatch.setenv("CDR_SPLIT_SIZE", size)
        request = RecoveryRequest(
            str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path / f'out-{size}'}"
        )
        repository, recovery, settings = inline.start(request)
        inline.run_all(repository, recovery, settings)
        results = {row.name: row.result or {} for row in repository.phases(recovery)}
        ledgers.append([(results[phase]["lines"], results[phase]["digest"]) for phase in set(Phase) - {Phase.COMMIT}])
    assert ledgers[0] == ledgers[1]


def lost(lanes: Any) -> None:
    lanes[np.flatnonzero(lanes >= 0)[0]] = -1


def _start(checkpoint: Any, to: Path) -> Any:
    return inline.start(RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{to}"))


def test_a_record_without_an_owner_fails_the_filter_with_its_channels_name(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owners of a channel's records are all of its records, whatever went wrong in finding them."""
    whole = Selector._lanes

    def one_less(self: Selector, planned: Any, window: Any, where: Any) -> Any:
        lanes = whole(self, planned, window, where)
        if (planned.up, planned.down) == (2, 1):
            lost(lanes)
        return lanes

    monkeypatch.setattr(select_batch, "SMALL_PAGES", 0)
    monkeypatch.setattr(Selector, "_lanes", one_less)
    monkeypatch.setattr(Selector, "_in_place", lambda *_: None)
    repository, recovery, settings = _start(fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out")
    inline.run(repository, recovery, Phase.READ, settings)
    with pytest.raises(Unbalanced, match="records where") as caught:
        inline.run(repository, recovery, Phase.FILTER, settings)
    assert (caught.value.where.exchange, caught.value.where.channel, caught.value.where.subtask) == ("main", 2, 1)
    assert repository.recovery(recovery).state is RecoveryState.FAILED
    assert output.manifest(tmp_path / "out") is None


def test_a_record_that_a_batch_of_channels_misses_fails_the_filter(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: Any = framed

    def one_less(batch: Any) -> Any:
        window, first = whole(batch)
        assert len(first) > 2, "several channels together"
        kept = (window.starts[:-1], window.ends[:-1], window.tags[:-1])
        return Window(window.data, 0, 0, *kept), np.append(first[:-1], first[-1] - 1)

    monkeypatch.setattr(select_batch, "framed", one_less)
    repository, recovery, settings = _start(fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out")
    inline.run(repository, recovery, Phase.READ, settings)
    with pytest.raises(Unbalanced, match="records where") as caught:
        inline.run(repository, recovery, Phase.FILTER, settings)
    assert (caught.value.where.exchange, caught.value.where.subtask) == ("main", 2)
    assert output.manifest(tmp_path / "out") is None


def test_a_record_that_one_pass_over_a_window_misses_fails_the_filter(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Sorter.sort

    def one_less(*arguments: Any) -> Any:
        found, at, position = whole(*arguments)
        return found[:-1], at, position

    monkeypatch.setattr(select_batch, "SMALL_PAGES", 0)
    monkeypatch.setattr(Sorter, "sort", one_less)
    repository, recovery, settings = _start(fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out")
    inline.run(repository, recovery, Phase.READ, settings)
    with pytest.raises(Unbalanced, match="records where"):
        inline.run(repository, recovery, Phase.FILTER, settings)


def test_an_owner_that_the_plan_does_not_know_is_never_written_anywhere(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "cdr_core.channels.channel_selection.record_owners", lambda _e, _d, _data, starts, *_: np.full(len(starts), 5)
    )
    monkeypatch.setattr(Selector, "_in_place", lambda *_: None)
    monkeypatch.setattr(select_batch, "new_owners_of", lambda exchange: np.full(exchange.max_parallelism, 5))
    repository, recovery, settings = _start(fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out")
    inline.run(repository, recovery, Phase.READ, settings)
    with pytest.raises(Unbalanced, match="the plan does not send it to") as caught:
        inline.run(repository, recovery, Phase.FILTER, settings)
    assert caught.value.where.subtask == 1


@pytest.mark.parametrize("broken", ["twice", "missing"])
def test_a_split_that_is_filtered_twice_or_not_at_all_fails_the_filter(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    whole = filter_phase.split_sources

    def wrong(*arguments: Any, **more: Any) -> list[Any]:
        (only,) = whole(*arguments, **more)
        if broken == "twice":
            return [only, replace(only, first=0, end=1)]
        return [replace(only, first=1)]

    monkeypatch.setattr(filter_phase, "split_sources", wrong)
    repository, recovery, settings = _start(fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out")
    inline.run(repository, recovery, Phase.READ, settings)
    with pytest.raises(Unbalanced, match="filter does not balance") as caught:
        inline.run(repository, recovery, Phase.FILTER, settings)
    assert (caught.value.where.channel, caught.value.where.subtask) == (0, 0)


def test_a_channel_that_was_not_scanned_fails_the_read(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read_phase.units
    monkeypatch.setattr(read_phase, "units", lambda plan: {"00000": ReadUnit(1, whole(plan)["00000"].end)})
    repository, recovery, settings = _start(fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out")
    with pytest.raises(Unbalanced, match="of a plan with 9"):
        inline.run(repository, recovery, Phase.READ, settings)
