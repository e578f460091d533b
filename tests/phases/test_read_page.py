"""The filter's one read page in whole runs: what passes it, what never touches it, and that misuse fails the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdr_core.channels import batch_selection as select_batch
from cdr_core.channels import channel_selection as selection
from cdr_core.channels.filter_context import FilterContext
from cdr_core.errors import IllegalState, SettingsRefused
from cdr_core.flink.read_page import PageCounts, ReadPage
from cdr_core.kernels import key_sort_pages
from cdr_core.metadata import Phase, RecoveryState
from cdr_core.planning.plan import Plan
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.runtime.driver import PhaseRun
from cdr_core.runtime.selection_blocks import load_splits
from cdr_core.runtime.unit_results import FilterResult
from cdr_core.settings import DEFAULT_PAGE_SIZE, load
from cdr_core.spill.reservations import Reservations
from tests.support import inline, output
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.generated import KEYED, generated


def filtered(checkpoint: str, spec: str, to: Path, parallelism: str) -> tuple[Plan, list[FilterResult], PageCounts]:
    """The plan, the filter's unit results and its page counts after the first two phases."""
    repository, recovery, settings = inline.start(RecoveryRequest(checkpoint, spec, parallelism, f"parquet:{to}"))
    inline.run(repository, recovery, Phase.READ, settings)
    result = inline.run(repository, recovery, Phase.FILTER, settings)
    drive = PhaseRun(repository, repository.recovery(recovery), Phase.FILTER, 0, settings)
    return drive.plan, drive.results(FilterResult), PageCounts.from_json(result["page"])


def ambiguous_bytes(plan: Plan) -> int:
    from cdr_core.channels.channel_source import open_channel

    return sum(open_channel(plan, n).size for n, channel in enumerate(plan.channels) if len(channel.subtasks) > 1)


@pytest.mark.seed("001-02", "001-03", "001-05", "001-08", "001-14")
@pytest.mark.parametrize("page_size", ["4KiB", "32KiB"])
def test_exactly_the_bytes_of_ambiguous_channels_pass_the_page(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page_size: str
) -> None:
    """One allocation a unit at most; a smaller page makes more records span."""
    monkeypatch.setattr(select_batch, "SMALL_PAGES", 0)
    monkeypatch.setenv("CDR_PAGE_SIZE", page_size)
    monkeypatch.setenv("CDR_SPLIT_SIZE", "20kB")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    plan, results, counts = filtered(str(checkpoint.path), str(checkpoint.spec), tmp_path / "out", "2")
    assert any(len(channel.subtasks) == 1 for channel in plan.channels)
    assert counts.bytes == ambiguous_bytes(plan) > 0
    assert all(result.page.allocations <= 1 for result in results)
    for result in results:
        assert result.splits is not None
        splits = load_splits(plan, result.splits)
        owners = plan.channels.owner_count[splits.channel]
        assert (result.page.bytes > 0) == (result.page.allocations == 1) == (max(owners) > 1)
    fillings = counts.bytes // load().page_size
    if page_size == "4KiB":
        assert fillings // 2 < counts.spanning <= fillings
    else:
        assert counts.spanning == 0, "a split of 20 kB fits the page"


@pytest.mark.seed("001-06")
def test_channels_with_one_possible_owner_never_touch_the_page(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is ambiguous at the same parallelism, so no page exists and no key is looked at."""

    def decoded(*_: Any) -> None:
        raise AssertionError("a channel that passes through was decoded")

    monkeypatch.setattr(selection, "record_owners", decoded)
    monkeypatch.setattr(key_sort_pages, "sort_pages", decoded)
    monkeypatch.setattr(selection, "paged_windows", decoded)
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    _, _, counts = filtered(str(checkpoint.path), str(checkpoint.spec), tmp_path / "out", "same")
    assert counts == PageCounts()


@pytest.mark.seed("001-11", "001-16")
def test_records_eight_times_the_page_arrive_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """32 KiB records over the smallest page; every record spans and none is lost."""
    monkeypatch.setenv("CDR_PAGE_SIZE", "4KiB")
    checkpoint = generated(tmp_path / "chk", "3", "4MB", record_bytes="32KiB-32KiB", keys=64)
    wish = RecoveryRequest(checkpoint, KEYED, "2", f"parquet:{tmp_path / 'out'}")
    repository, recovery, settings = inline.start(wish)
    assert inline.run_all(repository, recovery, settings)["verdict"] == "balanced"
    rows = output.rows(tmp_path / "out")
    page = PageCounts.from_json(inline.run(repository, recovery, Phase.FILTER, settings)["page"])
    assert page.spanning >= sum(row["down"] == 1 for row in rows) > 10
    assert {row["new_down"] for row in rows if row["down"] == 1} == {0, 1}


@pytest.mark.seed("001-12")
def test_a_record_of_six_megabytes_over_the_smallest_page_arrives_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is put together in a file of its own, which is gone afterwards."""
    monkeypatch.setenv("CDR_PAGE_SIZE", "4KiB")
    checkpoint = generated(tmp_path / "chk", "gen=1,slow=1", "13MB", record_bytes="6MB-6MB", keys=8)
    wish = RecoveryRequest(checkpoint, KEYED, "gen=1,slow=2", f"parquet:{tmp_path / 'out'}")
    repository, recovery, settings = inline.start(wish)
    assert inline.run_all(repository, recovery, settings)["verdict"] == "balanced"
    page = PageCounts.from_json(inline.run(repository, recovery, Phase.FILTER, settings)["page"])
    assert page.spooled == len(output.rows(tmp_path / "out")) >= 2
    assert list(Path(repository.recovery(recovery).workspace).rglob("record-*")) == []


@pytest.mark.seed("001-04", "001-19")
def test_a_page_that_is_asked_for_while_it_is_out_fails_the_run_and_nothing_is_published(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check is loud, so a run that ends well proves that the order of steps held."""
    monkeypatch.setattr(select_batch, "SMALL_PAGES", 0)
    monkeypatch.setattr(ReadPage, "give_back", lambda _page, _used: None)
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    wish = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path / 'out'}")
    repository, recovery, settings = inline.start(wish)
    monkeypatch.setenv("CDR_PAGE_SIZE", "4KiB")
    inline.run(repository, recovery, Phase.READ, settings)
    with pytest.raises(IllegalState, match="still in use"):
        inline.run(repository, recovery, Phase.FILTER, settings)
    assert repository.recovery(recovery).state is RecoveryState.FAILED
    assert output.manifest(tmp_path / "out") is None


@pytest.mark.seed("000-02", "000-18", "000-19", "001-01", "001-02")
def test_reading_and_filtering_take_nothing_that_output_needs(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both phases neither reserve nor wait for anything that the output may use."""

    def asked(*_: Any) -> None:
        raise AssertionError("the output's share was touched")

    for name in ("take", "give_back"):
        monkeypatch.setattr(Reservations, name, asked)
    tier = tmp_path / "tier"
    tier.mkdir()
    monkeypatch.setenv("CDR_SPILL_DIRS", f"{tier}:64MiB")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    filtered(str(checkpoint.path), str(checkpoint.spec), tmp_path / "out", "2")
    assert list(tier.rglob("*")) == []


@pytest.mark.seed("001-13", "001-15")
def test_an_error_in_the_filter_gives_the_page_back_and_frees_it(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is out at no time after the unit, whatever failed in it."""
    monkeypatch.setattr(select_batch, "SMALL_PAGES", 0)
    pages: list[ReadPage] = []

    class Watched(ReadPage):
        def __init__(self, size: int) -> None:
            super().__init__(size)
            pages.append(self)

    def fail(*_: Any) -> None:
        raise ZeroDivisionError("injected")

    monkeypatch.setattr(selection, "ReadPage", Watched)
    monkeypatch.setattr(key_sort_pages, "sort_pages", fail)
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    with pytest.raises(Exception, match="injected"):
        filtered(str(checkpoint.path), str(checkpoint.spec), tmp_path / "out", "2")
    assert [page.in_use for page in pages] == [False] * len(pages)
    with pytest.raises(IllegalState, match="closed"):
        pages[-1].take()


@pytest.mark.seed("001-07")
@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize("enabled", [True, False])
def test_a_filter_context_needs_a_positive_page(size: int, enabled: bool) -> None:
    """Refused when it is made, also when nothing would be filtered."""
    with pytest.raises(SettingsRefused, match="cannot be filled"):
        FilterContext(enabled, size, ("/somewhere",))


@pytest.mark.seed("001-07")
def test_a_filter_context_needs_a_directory_only_when_it_is_on() -> None:
    """Off, it has the default page."""
    with pytest.raises(SettingsRefused, match="directory"):
        FilterContext(enabled=True, page_size=4096)
    assert FilterContext.disabled() == FilterContext(enabled=False, page_size=DEFAULT_PAGE_SIZE)
    assert DEFAULT_PAGE_SIZE == 32 * 1024 == load().page_size


@pytest.mark.seed("001-20")
def test_a_page_below_the_floor_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not anything will be filtered."""
    monkeypatch.setenv("CDR_PAGE_SIZE", "1024")
    with pytest.raises(SettingsRefused, match="floor of 4 KiB"):
        load()
