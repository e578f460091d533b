"""The two commit modes on real checkpoints: the same rows and watermark, published once at the end or cut by cut."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdr_core import settings as settings_module
from cdr_core.checkpoint_target.export import export_checkpoint
from cdr_core.commit.commit_store import TableCommitter
from cdr_core.commit.committable import Committable
from cdr_core.commit.coordinator import Commit
from cdr_core.commit.sinks import Publication, Published
from cdr_core.commit.sinks.parquet import ParquetSink
from cdr_core.drain import commit_setup as coordination
from cdr_core.errors import IllegalState, Refused, SettingsRefused, StorageError, Unbalanced, Unreadable
from cdr_core.metadata import CommitState, FencedTransaction, Phase, Prepared, RecoveryCheckpointState
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.runtime.driver import PhaseRun
from cdr_core.runtime.unit_runner import run_unit
from cdr_core.verify.claims import read_claims
from cdr_core.verify.verify import Request, verify
from tests.support import draining, inline, output
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.comparing import compare
from tests.support.draining import Started, make_slow
from tests.support.sinks import sink_of
from tests.support.written import SPEC, record, status, watermark, write_checkpoint


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pages, few of them, and a consumer that takes its time: a drain long enough to be cut."""
    make_slow(monkeypatch)


@pytest.fixture
def per_checkpoint(slow: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDR_COMMIT", "per-checkpoint")


def request(checkpoint: FixtureCheckpoint, to: str, parallelism: str = "2") -> RecoveryRequest:
    return RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), parallelism, to, "20ms")


def spill(checkpoint: FixtureCheckpoint, to: Path, parallelism: str = "2") -> Started:
    """A recovery that is ready to be drained."""
    return draining.spilled(request(checkpoint, f"parquet:{to}", parallelism))


@pytest.fixture
def spilled(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, per_checkpoint: None
) -> Iterator[tuple[Started, FixtureCheckpoint, Path]]:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    started = spill(checkpoint, tmp_path / "out")
    yield started, checkpoint, tmp_path / "out"
    started[0].close()


def finish(started: Started) -> dict[str, Any]:
    repository, recovery, settings = started
    inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
    result = inline.run(repository, recovery, Phase.COMMIT, settings)
    assert result["verdict"] == "balanced"
    return dict(result)


def manifests(out: Path) -> list[dict[str, Any]]:
    """All publications, ascending."""
    found = sorted(out.glob("_cdr/manifest-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    return [json.loads(path.read_text()) for path in found]


def test_each_recovery_checkpoint_is_published_when_it_completes_and_the_receipt_lists_them_all(
    spilled: tuple[Started, FixtureCheckpoint, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """004-10, 004-09: before the end of the drain something is visible; together it is the source, each record once."""
    monkeypatch.setenv("CDR_FAULTS", "drain.page=sleep:0.02")  # also on busy cores there is time for two
    started, checkpoint, out = spilled
    repository, recovery, settings = started
    inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
    before = manifests(out)
    assert len(before) >= 2, "the drain published while it ran"
    assert 0 < int(before[0]["properties"]["cdr.records"]) < 1878
    inline.run(repository, recovery, Phase.COMMIT, settings)
    compare(output.rows(out), checkpoint, 2)
    published = manifests(out)
    numbers = [int(each["properties"]["cdr.commit-id"]) for each in published]
    assert numbers == sorted(set(numbers))
    receipt = repository.receipt(recovery)
    assert receipt is not None
    assert receipt["verdict"] == "balanced"
    assert [each["commit_id"] for each in receipt["publications"]] == numbers
    assert sum(each["records"] for each in receipt["publications"]) == receipt["records"]["source"] == 1878
    assert receipt["publication"]["commit_id"] == numbers[-1]
    by_manifest = [int(each["properties"]["cdr.records"]) for each in published]
    assert by_manifest == [each["records"] for each in receipt["publications"]]
    assert {row.state for row in repository.commit_log(recovery)} == {CommitState.DONE}


@pytest.mark.parametrize(
    ("name", "number", "parallelism", "keyed"),
    [("a_p3_thr0", 2, 2, True), ("b_p3_thr0", 2, 5, True), ("d_p4_thr0", 2, 3, False), ("g_p7_thr0", 2, 7, True)],
)
def test_both_modes_publish_the_same_rows_and_the_same_watermark(
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    slow: None,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    number: int,
    parallelism: int,
    keyed: bool,
) -> None:
    """004-01: off = one publication, as before; on = several. What is in the table is the same."""
    checkpoint = fixture_checkpoint(name, number)
    found = {}
    for mode in ("at-end", "per-checkpoint"):
        monkeypatch.setenv("CDR_COMMIT", mode)
        started = spill(checkpoint, tmp_path / mode, str(parallelism))
        finish(started)
        rows = output.rows(tmp_path / mode)
        compare(rows, checkpoint, parallelism, keyed)
        last = manifests(tmp_path / mode)[-1]["properties"]
        found[mode] = (Counter(map(repr, rows)), last.get("cdr.watermark"))
        assert len(manifests(tmp_path / mode)) == 1 or mode == "per-checkpoint"
        started[0].close()
    assert found["at-end"] == found["per-checkpoint"]


def written(folder: Path, channels: dict[tuple[int, int], bytes], *, ups: int = 1, downs: int = 2) -> Started:
    """A recovery of these channels at the same parallelism, where every element stays in its place, ready to drain."""
    checkpoint = write_checkpoint(folder / "chk", ups, downs, channels)
    spec = SPEC.format(partitioner="rebalance")
    started = inline.start(RecoveryRequest(checkpoint, spec, "same", f"parquet:{folder / 'out'}", "20ms"))
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL):
        inline.run(started[0], started[1], phase, started[2])
    return started


@pytest.mark.parametrize("mode", ["at-end", "per-checkpoint"])
@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([watermark(1000)], [watermark(0)], "0"),
        ([watermark(1000)], [], None),
        ([watermark(5), watermark(7)], [watermark(9), status(idle=True)], "7"),
        ([watermark(5), status(idle=True)], [watermark(9), status(idle=True)], "9"),
        ([watermark(-5)], [watermark(9), status(idle=True), status(idle=False)], "-5"),
    ],
    ids=["minimum", "none", "idle", "all idle", "active again"],
)
def test_the_watermark_of_a_publication_is_what_the_slowest_active_subtask_was_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    one: list[bytes],
    other: list[bytes],
    expected: str | None,
) -> None:
    """004-23, E65: [1000, 0] gives 0; a subtask that was told nothing holds the others back, an idle one does not."""
    monkeypatch.setenv("CDR_COMMIT", mode)
    channels = {(0, 0): b"".join([record(1), *one, record(2)]), (0, 1): b"".join([record(3), *other])}
    started = written(tmp_path, channels)
    finish(started)
    assert manifests(tmp_path / "out")[-1]["properties"].get("cdr.watermark") == expected
    receipt = started[0].receipt(started[1]) or {}
    assert receipt["publication"]["watermark"] == (None if expected is None else int(expected))


def test_a_drain_that_goes_on_remembers_what_its_predecessor_was_told(
    tmp_path: Path, per_checkpoint: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only watermark is the first element: whoever goes on behind it never sees it."""
    data = watermark(10) + b"".join(record(number, "x" * 100) for number in range(3000))
    started = written(tmp_path, {(0, 0): data}, downs=1)
    repository, recovery, _ = started
    assert draining.exit_status(draining.drain_in_child(recovery, "listener.after=kill")) == -9
    finish(started)
    (unit,) = repository.units(recovery, Phase.DRAIN)
    assert unit.result["resumed_from"] != "start"
    assert {each["properties"]["cdr.watermark"] for each in manifests(tmp_path / "out")} == {"10"}
    assert repository.prepared(recovery)[-1].watermark == 10
    assert len(output.rows(tmp_path / "out")) == 3000


def test_watermarks_rise_with_the_commits_and_are_the_ones_that_were_drained(
    spilled: tuple[Started, FixtureCheckpoint, Path],
) -> None:
    """004-23, I7: in the properties of every publication that has one; entries carry what their subtask has seen."""
    started, _, out = spilled
    finish(started)
    said = [each["properties"].get("cdr.watermark") for each in manifests(out)]
    known = [int(watermark) for watermark in said if watermark is not None]
    assert known == sorted(known)
    assert None not in said[said.index(str(known[0])) :] if known else True
    entries = started[0].prepared(started[1])
    assert [row.watermark for row in entries] == [
        Committable.from_json(json.loads(row.manifest)).watermark for row in entries
    ]


def test_what_was_published_is_never_drained_again(spilled: tuple[Started, FixtureCheckpoint, Path]) -> None:
    """E29: killed after a commit, the next attempt begins at or behind it."""
    started, checkpoint, out = spilled
    repository, recovery, _ = started
    assert draining.exit_status(draining.drain_in_child(recovery, "listener.after=kill")) == -9
    (committed,) = repository.commit_log(recovery)
    before = {file["path"] for file in manifests(out)[-1]["files"]}
    finish(started)
    compare(output.rows(out), checkpoint, 2)
    assert committed.commit_id == int(manifests(out)[0]["properties"]["cdr.commit-id"])
    assert any(unit.result["resumed_from"] != "start" for unit in repository.units(recovery, Phase.DRAIN))
    assert before <= {file["path"] for file in manifests(out)[-1]["files"]}


def test_output_of_a_finished_subtask_that_no_checkpoint_counts_on_yet_goes_with_the_next(
    spilled: tuple[Started, FixtureCheckpoint, Path],
) -> None:
    """I9: killed before any checkpoint completed. The finished subtask is not drained again; its output counts."""
    started, checkpoint, out = spilled
    repository, recovery, _ = started
    # One unit after the other, and a poll behind each: the first is finished when the first checkpoint is asked.
    assert (
        draining.exit_status(draining.drain_in_child(recovery, "checkpoint.manifest=kill", inline.InlineWorkers()))
        == -9
    )
    (unit,) = repository.units(recovery, Phase.DRAIN)
    assert repository.prepared(recovery) == ()
    finish(started)
    compare(output.rows(out), checkpoint, 2)
    assert unit in repository.units(recovery, Phase.DRAIN)
    assert {file["path"] for file in unit.result["files"]} <= {file["path"] for file in manifests(out)[-1]["files"]}


def test_a_commit_that_did_not_happen_is_not_reported(
    spilled: tuple[Started, FixtureCheckpoint, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """E45: what counts is the log, not what somebody returned."""
    started, _, _ = spilled
    repository, recovery, settings = started
    inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
    monkeypatch.setattr(TableCommitter, "commit", lambda *_: True)
    with pytest.raises(IllegalState, match="was not published"):
        inline.run(repository, recovery, Phase.COMMIT, settings)
    assert repository.receipt(recovery) is None


def test_a_resume_before_what_is_published_is_refused(
    spilled: tuple[Started, FixtureCheckpoint, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: a commit without a complete checkpoint behind it cannot be; if it were, its records would come twice."""
    started, _, _ = spilled
    repository, recovery, _ = started

    class Log:
        commit_id = 7

    monkeypatch.setattr(type(repository), "commit_log", lambda *_: (Log(),))
    with pytest.raises(IllegalState, match="go back to checkpoint 0, and 7 may be published"):
        inline.run(repository, recovery, Phase.DRAIN, started[2])


def test_writers_do_not_wait_for_a_publication(
    spilled: tuple[Started, FixtureCheckpoint, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """004-19, 004-08: the target does not answer until every subtask is drained to its end; they get there, too."""
    started, checkpoint, out = spilled
    seen: list[int] = []
    publish = ParquetSink.publish

    def slow_publish(sink: ParquetSink, base: str, publication: Publication) -> Published:
        deadline = time.monotonic() + 30
        results = Path(started[2].workspace) / started[1]
        while not seen and len(list(results.glob("e*/drain/results/*.msgpack"))) < 2:
            assert time.monotonic() < deadline, "a writer waits for the publication"
            time.sleep(0.01)
        seen.append(publication.commit_id)
        return publish(sink, base, publication)

    monkeypatch.setattr(ParquetSink, "publish", slow_publish)
    finish(started)
    assert seen
    compare(output.rows(out), checkpoint, 2)


def test_a_checkpoint_completes_while_a_publication_waits(
    spilled: tuple[Started, FixtureCheckpoint, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target does not answer until three later checkpoints are complete; each is published once, in order."""
    started, checkpoint, out = spilled
    repository, recovery, _ = started
    monkeypatch.setenv("CDR_FAULTS", "drain.page=sleep:0.02")
    seen: list[int] = []
    publish = ParquetSink.publish

    def late(sink: ParquetSink, base: str, publication: Publication) -> Published:
        deadline = time.monotonic() + 60
        complete = {RecoveryCheckpointState.COMPLETED, RecoveryCheckpointState.EXPIRED}
        while not seen and sum(row.state in complete for row in repository.checkpoints(recovery)) < 4:
            assert time.monotonic() < deadline, "a checkpoint waits for the publication"
            time.sleep(0.01)
        seen.append(publication.commit_id)
        return publish(sink, base, publication)

    monkeypatch.setattr(ParquetSink, "publish", late)
    finish(started)
    assert seen == sorted(set(seen))
    compare(output.rows(out), checkpoint, 2)


def test_a_publication_that_fails_fails_the_drain_and_the_next_attempt_publishes_it(
    spilled: tuple[Started, FixtureCheckpoint, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    started, checkpoint, out = spilled
    with monkeypatch.context() as patched:
        patched.setattr(ParquetSink, "publish", lambda *_: (_ for _ in ()).throw(StorageError("the target is away")))
        with pytest.raises(StorageError, match="the target is away"):
            inline.run(started[0], started[1], Phase.DRAIN, started[2], inline.ThreadedWorkers())
    assert manifests(out) == []
    finish(started)
    compare(output.rows(out), checkpoint, 2)


def test_a_drain_ends_when_all_that_was_handed_over_is_published(
    spilled: tuple[Started, FixtureCheckpoint, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the checkpoint that ends the drain is left to commit."""
    repository, recovery, settings = spilled[0]
    publish = ParquetSink.publish
    monkeypatch.setattr(ParquetSink, "publish", lambda *given: (time.sleep(0.3), publish(*given))[1])
    inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
    published = [row.commit_id for row in repository.commit_log(recovery) if row.state is CommitState.PUBLISHED]
    prepared = {row.checkpoint_id for row in repository.prepared(recovery)}
    assert published == sorted(prepared)[:-1]
    assert published


def test_a_task_reads_a_file_back_before_a_snapshot_names_it(
    spilled: tuple[Started, FixtureCheckpoint, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose rows are not those that were drained never gets as far as a checkpoint."""
    started, checkpoint, out = spilled
    repository, recovery, settings = started
    real = ParquetSink.writer

    class Forgetful:
        """Leaves the first row of every batch out."""

        def __init__(self, writer: Any) -> None:
            self._writer = writer

        def write(self, batch: pa.RecordBatch) -> None:
            self._writer.write(batch.slice(1))

        @property
        def prepared(self) -> Any:
            return self._writer.prepared

    @contextmanager
    def forgetful(*arguments: Any) -> Iterator[Forgetful]:
        with real(*arguments) as writer:
            yield Forgetful(writer)

    with monkeypatch.context() as patched:
        patched.setattr(ParquetSink, "writer", forgetful)
        with pytest.raises(Unbalanced, match="drain does not balance"):
            inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
    assert repository.prepared(recovery) == ()
    assert manifests(out) == []
    finish(started)
    compare(output.rows(out), checkpoint, 2)


class RetryingWorkers(inline.ThreadedWorkers):
    """As Spark does: a task that failed is run again, the others are left alone."""

    def run(self, drive: PhaseRun, payload: str, units: Sequence[str], on_poll: Callable[[], None]) -> None:
        def run_until_done(unit: str) -> None:
            for _ in range(4):
                self.done.append(unit)
                try:
                    run_unit(payload, unit, 0)
                except OSError:
                    continue
                return

        with ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(run_until_done, unit) for unit in units]
            while not all(job.done() for job in jobs):
                on_poll()
                time.sleep(0.01)
        on_poll()


def test_a_failed_subtask_redoes_only_itself_and_only_from_its_last_cut(
    spilled: tuple[Started, FixtureCheckpoint, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """004-28, 004-12: the motive of the whole protocol; counters prove it."""
    started, checkpoint, out = spilled
    repository, recovery, settings = started
    fault = f",drain.snapshot=once:{tmp_path / 'failed'}:raise"
    monkeypatch.setenv("CDR_FAULTS", os.environ["CDR_FAULTS"] + fault)
    workers = RetryingWorkers()
    inline.run(repository, recovery, Phase.DRAIN, settings, workers)
    runs = Counter(workers.done)
    assert sorted(runs.values()) == [1, 2], "one subtask ran twice, the other once"
    rows = repository.units(recovery, Phase.DRAIN)
    units, records = {row.unit: row.result for row in rows}, {row.unit: row.records for row in rows}
    (failed,) = [unit for unit, times in runs.items() if times == 2]
    assert units[failed]["resumed_from"] != "start"
    (other,) = [unit for unit in runs if unit != failed]
    assert units[other]["resumed_from"] == "start"
    assert units[other]["records_here"] == records[other]
    assert len(repository.attempts(recovery)) == 4, "the attempt went on"
    inline.run(repository, recovery, Phase.COMMIT, settings)
    compare(output.rows(out), checkpoint, 2)


def test_prepared_files_are_closed_and_whole_before_their_entry_is_known(
    spilled: tuple[Started, FixtureCheckpoint, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """004-04, 004-07: whatever a row names can be read back at the moment it is written."""
    started, _, out = spilled
    add, seen = FencedTransaction.add_prepared, []

    def checked(transaction: FencedTransaction, prepared: Prepared) -> bool:
        for file in Committable.from_json(json.loads(prepared.manifest)).files:
            with sink_of(f"parquet:{out}").open_file(file) as source:
                assert pq.ParquetFile(source).metadata.num_rows == file.records
            seen.append(file.path)
        return add(transaction, prepared)

    monkeypatch.setattr(FencedTransaction, "add_prepared", checked)
    finish(started)
    assert len(seen) > 2


@pytest.mark.parametrize("damage", ["missing", "shorter", "changed"])
def test_a_prepared_file_that_was_lost_or_changed_is_not_published(
    spilled: tuple[Started, FixtureCheckpoint, Path], monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """E50: looked at before every publication, existence, size and bytes."""
    started, _, out = spilled
    repository, recovery, settings = started
    commit = TableCommitter.commit

    def damaged(committer: TableCommitter, what: Commit) -> bool:
        for file in what.files:
            path = out / file.path
            data = path.read_bytes()
            if damage == "missing":
                path.unlink()
            elif damage == "shorter":
                path.write_bytes(data[:-1])
            else:
                path.write_bytes(data[:-20] + bytes([data[-20] ^ 1]) + data[-19:])
        return commit(committer, what)

    monkeypatch.setattr(TableCommitter, "commit", damaged)
    with pytest.raises(Unreadable, match="parquet"):
        inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
    assert manifests(out) == []
    assert repository.commit_log(recovery) == (), "not even intended"


def test_entries_that_do_not_balance_with_the_ledger_are_not_published(
    spilled: tuple[Started, FixtureCheckpoint, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that is counted twice is noticed before anybody can see it."""
    started, _, out = spilled
    real = coordination.committables

    def doubled(drive: PhaseRun, after: int = 0) -> list[Committable]:
        found = real(drive, after)
        return [*found, *[entry for entry in found if entry.records][:1]]

    monkeypatch.setattr(coordination, "committables", doubled)
    with pytest.raises(Unbalanced, match="would be published"):
        inline.run(started[0], started[1], Phase.DRAIN, started[2], inline.ThreadedWorkers())
    assert manifests(out) == []


def test_the_mode_is_that_of_the_creation_and_cannot_change(
    spilled: tuple[Started, FixtureCheckpoint, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other settings of a later attempt change nothing; a second start in the other mode is refused."""
    started, checkpoint, out = spilled
    monkeypatch.setenv("CDR_COMMIT", "at-end")
    with pytest.raises(Refused, match="options"):
        inline.start(request(checkpoint, f"parquet:{out}"))
    finish((started[0], started[1], settings_module.load()))
    assert len(manifests(out)) > 1


@pytest.mark.parametrize(
    ("to", "environment", "match"),
    [
        ("checkpoint:{}/c", {}, "CDR_COMMIT=per-checkpoint cannot publish to checkpoint:"),
        ("parquet:{}/out", {"CDR_CHECKPOINT_DURING_RECOVERY": "false"}, "CDR_CHECKPOINT_DURING_RECOVERY"),
    ],
)
def test_what_cannot_be_published_cut_by_cut_is_refused_by_name(
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    per_checkpoint: None,
    monkeypatch: pytest.MonkeyPatch,
    to: str,
    environment: dict[str, str],
    match: str,
) -> None:
    """004-18, I10"""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsRefused, match=match):
        inline.start(request(fixture_checkpoint("a_p3_thr0", 2), to.format(tmp_path)))


def test_a_drill_publishes_nothing_in_either_mode(fixture_checkpoint: FixtureCheckpoints, per_checkpoint: None) -> None:
    """004-18: a target that the mode makes no difference to keeps the usual way."""
    started = inline.start(request(fixture_checkpoint("a_p3_thr0", 2), "none:"))
    assert inline.run_all(*started)["verdict"] == "balanced"
    assert started[0].recovery(started[1]).options.commit == "at-end"


def test_a_checkpoint_cannot_be_exported_once_something_is_published(
    spilled: tuple[Started, FixtureCheckpoint, Path], tmp_path: Path
) -> None:
    """What is published would be in it once more."""
    started, _, _ = spilled
    repository, recovery, settings = started
    inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
    number = repository.checkpoints(recovery)[-1].checkpoint_id
    with pytest.raises(Refused, match="publishes with every checkpoint"):
        export_checkpoint(repository, recovery, number, str(tmp_path / "exported"))


def test_the_second_reader_agrees_with_the_receipt_of_many_publications(
    spilled: tuple[Started, FixtureCheckpoint, Path],
) -> None:
    started, checkpoint, out = spilled
    finish(started)
    receipt = json.dumps(started[0].receipt(started[1])).encode()
    claims = read_claims(receipt, "receipt")
    report = verify(Request(str(checkpoint.path), f"parquet:{out}", checkpoint.spec.read_text(), "2", claims))
    assert report.differences == ()
