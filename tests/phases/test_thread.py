"""The whole thread on a real checkpoint: every record once, where it belongs, in order, as Flink itself read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdr_core.errors import Cancelled, CdrError, Fenced, PhaseRefused, Refused, SpecRefused, Unreadable
from cdr_core.metadata import Phase, RecoveryState
from cdr_core.recovery.recovery_request import RecoveryRequest, create_in
from cdr_core.runtime.driver import run_phase
from cdr_core.runtime.phase_command import own_runner
from cdr_core.settings import load
from tests.support import inline, output
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.comparing import compare


def request(checkpoint: FixtureCheckpoint, to: Path, parallelism: str = "2") -> RecoveryRequest:
    return RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), parallelism, f"parquet:{to}")


def recover(checkpoint: FixtureCheckpoint, to: Path, parallelism: str = "2") -> list[dict[str, Any]]:
    repository, recovery, settings = inline.start(request(checkpoint, to, parallelism))
    result = inline.run_all(repository, recovery, settings)
    assert result["verdict"] == "balanced"
    assert repository.recovery(recovery).state is RecoveryState.DONE
    return output.rows(to)


@pytest.mark.seed("001-22")
@pytest.mark.parametrize("parallelism", [1, 2, 3, 4, 5])
def test_every_record_of_the_shipped_checkpoint_arrives_once_and_where_it_belongs(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, parallelism: int
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    rows = recover(checkpoint, tmp_path / "out", str(parallelism))
    assert len(rows) == 1878
    compare(rows, checkpoint, parallelism)


@pytest.mark.seed("000-23")
@pytest.mark.parametrize(
    ("name", "number", "parallelism", "keyed"),
    [
        ("a_p3_thr1mb", 2, 2, True),
        ("b_p3_thr0", 2, 2, True),
        ("d_p4_thr0", 2, 3, False),
        ("e_p4_seg32k", 2, 6, True),
        ("f_p3_thr0", 2, 2, True),
        ("g_p7_thr0", 2, 2, True),
        ("r_p3_rocks_inc_true", 2, 5, True),
        ("v5_a_p3_thr0", 1, 2, True),
    ],
)
def test_other_jobs_versions_and_storage_kinds_arrive_as_well(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, name: str, number: int, parallelism: int, keyed: bool
) -> None:
    checkpoint = fixture_checkpoint(name, number)
    compare(recover(checkpoint, tmp_path / "out", str(parallelism)), checkpoint, parallelism, keyed)


@pytest.mark.seed("002-04")
def test_a_checkpoint_without_channel_state_gives_an_empty_table_and_says_so(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    repository, recovery, settings = inline.start(request(fixture_checkpoint("c_p7_thr0", 2), tmp_path / "out"))
    result = inline.run_all(repository, recovery, settings)
    assert result["records"] == 0
    assert result["verdict"] == "balanced"
    assert output.rows(tmp_path / "out") == []


def test_a_finished_phase_is_not_done_again_and_takes_no_epoch(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    repository, recovery, settings = inline.start(request(fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out"))
    first = inline.run_all(repository, recovery, settings)
    epoch = repository.recovery(recovery).epoch
    workers = inline.InlineWorkers()
    for phase in Phase:
        again = inline.run(repository, recovery, phase, settings, workers)
    assert again == first
    assert workers.done == []
    assert repository.recovery(recovery).epoch == epoch
    assert len(output.rows(tmp_path / "out")) == 1878


@pytest.mark.seed("000-17", "002-02", "002-49")
def test_a_phase_refuses_to_start_without_its_predecessors_result(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    repository, recovery, settings = inline.start(request(fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out"))
    inline.run(repository, recovery, Phase.READ, settings)
    with pytest.raises(PhaseRefused, match="filter is not done"):
        inline.run(repository, recovery, Phase.SPILL, settings)


def test_finished_units_are_kept_by_the_next_attempt(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDR_SPLIT_SIZE", "20kB")
    repository, recovery, settings = inline.start(request(fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out"))

    class Dying(inline.InlineWorkers):
        def run(self, drive: Any, payload: str, units: Any, on_poll: Any) -> None:
            super().run(drive, payload, units[:3], on_poll)
            raise OSError("the machine is on fire")

    with pytest.raises(Exception, match="on fire"):
        inline.run(repository, recovery, Phase.READ, settings, Dying())
    monkeypatch.setenv("CDR_SPLIT_SIZE", "90kB")
    workers = inline.InlineWorkers()
    inline.run(repository, recovery, Phase.READ, load(), workers)
    total = repository.phases(recovery)[0].units_total
    assert total is not None
    assert len(workers.done) == total - 3
    for phase in Phase:
        inline.run(repository, recovery, phase, settings)
    compare(output.rows(tmp_path / "out"), fixture_checkpoint("a_p3_thr0", 2), 2)


def test_an_attempt_whose_epoch_is_over_writes_nothing(fixture_checkpoint: FixtureCheckpoints, tmp_path: Path) -> None:
    repository, recovery, settings = inline.start(request(fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out"))
    stale = repository.begin_attempt(recovery, Phase.READ, own_runner("read"))
    assert stale is not None
    inline.run(repository, recovery, Phase.READ, settings)
    with pytest.raises(Fenced):
        run_phase(repository, recovery, Phase.READ, stale.epoch, settings, inline.InlineWorkers(), lambda _: None)
    inline.run_all(repository, recovery, settings)
    assert len(output.rows(tmp_path / "out")) == 1878


def test_the_same_checkpoint_and_target_is_one_recovery_and_another_wish_for_it_is_refused(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    _, first, settings = inline.start(request(checkpoint, tmp_path / "out"))
    repository, second, _ = inline.start(request(checkpoint, tmp_path / "out"))
    assert first == second
    with pytest.raises(Refused):
        create_in(repository, request(checkpoint, tmp_path / "out", "5"), settings)


def test_the_source_is_read_where_it_lies_and_another_checkpoint_in_its_place_is_an_error(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    original = fixture_checkpoint("a_p3_thr0", 2)
    copy = FixtureCheckpoint("copy", original.copy(tmp_path / "chk-2"), original.spec)
    repository, recovery, settings = inline.start(request(copy, tmp_path / "out"))
    other = fixture_checkpoint("a_p3_thr0", 1).path / "_metadata"
    (copy.path / "_metadata").write_bytes(other.read_bytes())
    with pytest.raises(Unreadable, match="another checkpoint"):
        inline.run(repository, recovery, Phase.READ, settings)


def test_the_receipt_adds_up_and_names_what_was_left_behind(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    repository, recovery, settings = inline.start(request(checkpoint, tmp_path / "out"))
    inline.run_all(repository, recovery, settings)
    receipt = repository.receipt(recovery)
    assert receipt is not None
    assert receipt["records"] == {"source": 1878, "published": 1878}
    assert receipt["fingerprint"]["source"] == receipt["fingerprint"]["published"]
    others = sum(1 for element in checkpoint.oracle.elements if not element.is_record)
    assert sum(receipt["dropped_by_rule"]["elements"].values()) == others
    properties = output.manifest(tmp_path / "out")
    assert properties is not None
    assert properties["properties"]["cdr.proof-sha256"] == receipt["proof_sha256"]


@pytest.mark.seed("002-21")
def test_a_cancelled_recovery_stops_while_it_runs_and_stays_cancelled(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdr_core.runtime.driver.HEARTBEAT_SECONDS", -1.0)
    monkeypatch.setenv("CDR_SPLIT_SIZE", "20kB")
    repository, recovery, settings = inline.start(request(fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out"))

    class Interrupted(inline.InlineWorkers):
        def run(self, drive: Any, payload: str, units: Any, on_poll: Any) -> None:
            super().run(drive, payload, units[:1], on_poll)
            repository.cancel(recovery)
            super().run(drive, payload, units[1:], on_poll)

    workers = Interrupted()
    with pytest.raises(Cancelled):
        inline.run(repository, recovery, Phase.READ, settings, workers)
    assert workers.ended
    assert len(workers.done) == 2
    assert repository.recovery(recovery).state is RecoveryState.CANCELLED
    with pytest.raises(Cancelled):
        inline.run(repository, recovery, Phase.READ, settings)


def test_a_local_workspace_is_refused_on_another_host(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, recovery, settings = inline.start(request(fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out"))
    monkeypatch.setattr("cdr_core.runtime.driver.host_id", lambda: "elsewhere")
    with pytest.raises(Refused, match="on another host"):
        inline.run(repository, recovery, Phase.READ, settings)


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete"])
def test_a_prepared_file_that_was_touched_is_never_published(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, damage: str
) -> None:
    repository, recovery, settings = inline.start(request(fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out"))
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL, Phase.DRAIN):
        inline.run(repository, recovery, phase, settings)
    file = sorted((tmp_path / "out").rglob("*.parquet"))[0]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data[:-1] if damage == "truncate" else data)
    if damage == "delete":
        file.unlink()
    with pytest.raises(Unreadable, match="prepared file"):
        inline.run(repository, recovery, Phase.COMMIT, settings)
    assert output.manifest(tmp_path / "out") is None


@pytest.mark.parametrize("spelling", ["{out}/../out", "file://{out}", "{link}", "{out}/"])
def test_another_spelling_of_the_target_is_the_same_recovery(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, spelling: str
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    _, first, _ = inline.start(request(checkpoint, tmp_path / "out"))
    (tmp_path / "link").symlink_to(tmp_path / "out")
    target = spelling.format(out=tmp_path / "out", link=tmp_path / "link")
    again = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "02", f"parquet:{target}")
    _, second, _ = inline.start(again)
    assert second == first


@pytest.mark.parametrize("change", [("[f0]", "[f1]"), ("[f0]", "[f3]"), ("TUPLE<LONG, INT", "TUPLE<INT, LONG")])
@pytest.mark.parametrize("parallelism", ["2", "1"])
def test_a_key_that_is_not_the_jobs_is_noticed_by_where_the_records_were(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, change: tuple[str, str], parallelism: str
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    spec = checkpoint.spec.read_text().replace(*change)
    wrong = RecoveryRequest(str(checkpoint.path), spec, parallelism, f"parquet:{tmp_path / 'out'}")
    with pytest.raises(SpecRefused, match="is keyed by LONG; correct the job spec"):
        inline.start(wrong)
    assert output.manifest(tmp_path / "out") is None


def test_what_an_earlier_commit_attempt_found_right_is_looked_at_again(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, recovery, settings = inline.start(request(fixture_checkpoint("a_p3_thr0", 2), tmp_path / "out"))
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL, Phase.DRAIN):
        inline.run(repository, recovery, phase, settings)
    monkeypatch.setenv("CDR_FAULTS", "commit.before-publish=raise")
    with pytest.raises(CdrError, match="fault injected"):
        inline.run(repository, recovery, Phase.COMMIT, settings)
    monkeypatch.delenv("CDR_FAULTS")
    file = sorted((tmp_path / "out").rglob("*.parquet"))[0]
    kept = file.rename(tmp_path / "kept")
    with pytest.raises(Unreadable, match="is missing"):
        inline.run(repository, recovery, Phase.COMMIT, settings)
    assert output.manifest(tmp_path / "out") is None
    kept.rename(file)
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    assert len(output.rows(tmp_path / "out")) == 1878
