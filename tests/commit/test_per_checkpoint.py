"""Publications per recovery checkpoint into every kind of target, killed between publishing and recording."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdr_core.commit.coordinator import Coordinator
from cdr_core.commit.events import Event
from cdr_core.metadata import Phase, Repository
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.audit.recovered import validate
from tests.commit.targets import ParquetTarget, Target
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.draining import Started, drain_in_child, exit_status, make_slow, spilled
from tests.support.postgres import Postgres

RECORDS = 1878


@pytest.fixture
def draining(
    empty_target: Target, fixture_checkpoint: FixtureCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Started]:
    """Ready to be drained, slowly, with a checkpoint every few milliseconds."""
    make_slow(monkeypatch, "drain.page=sleep:0.01")
    monkeypatch.setenv("CDR_COMMIT", "per-checkpoint")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", empty_target.name, "10ms")
    started = spilled(request)
    yield started
    started[0].close()


def test_killed_between_publishing_and_recording_every_target_ends_with_each_record_once(
    draining: Started, empty_target: Target
) -> None:
    """E43, E44, 004-16: the next attempt finds it in the target; what is left follows under growing numbers."""
    repository, recovery, settings = draining
    assert exit_status(drain_in_child(recovery, "publish.after=kill")) == -signal.SIGKILL
    assert (empty_target.commits(), [str(row.state) for row in repository.commit_log(recovery)]) == (1, ["INTENT"])
    inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
    result = inline.run(repository, recovery, Phase.COMMIT, settings)
    assert (result["verdict"], result["records"]) == ("balanced", RECORDS)
    rows = empty_target.rows()
    places = {(row["gate"], row["up"], row["down"], row["pos"]) for row in rows}
    assert len(rows) == len(places) == RECORDS
    log = repository.commit_log(recovery)
    assert empty_target.commits() == len(log) >= 2
    assert {str(row.state) for row in log} == {"DONE"}
    properties = empty_target.properties()
    assert properties["cdr.commit-id"] == str(log[-1].commit_id)
    assert properties["cdr.proof-sha256"] == log[-1].proof_sha256
    receipt = dict(repository.receipt(recovery) or {})
    validate(receipt)
    assert [each["location"] for each in receipt["publications"]] == [row.location for row in log]
    assert sum(each["records"] for each in receipt["publications"]) == RECORDS


def test_on_postgresql_what_was_published_and_not_recorded_is_found_and_the_rest_follows(
    postgres: Postgres, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E43, E44: the coordinator's rows and fence on a server; killed twice, at both sides of the record."""
    make_slow(monkeypatch, "drain.page=sleep:0.01")
    monkeypatch.setenv("CDR_COMMIT", "per-checkpoint")
    monkeypatch.setenv("CDR_DATABASE_URL", postgres.create())
    target, checkpoint = ParquetTarget(tmp_path), fixture_checkpoint("a_p3_thr0", 2)
    wish = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", target.name, "10ms")
    repository, recovery, settings = spilled(wish)
    repository.close()  # a child must not share its connections
    for fault in ("publish.after=kill", "listener.after=kill"):
        assert exit_status(drain_in_child(recovery, fault)) == -signal.SIGKILL
    assert target.commits() == 1, "found, not published again"
    with Repository.open(settings.database_url) as repository:
        inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
        assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
        log = repository.commit_log(recovery)
    rows = target.rows()
    assert len(rows) == len({(row["gate"], row["up"], row["down"], row["pos"]) for row in rows}) == RECORDS
    assert target.commits() == len(log)
    assert {str(row.state) for row in log} == {"DONE"}


@pytest.mark.parametrize("empty_target", ["parquet"], indirect=True)
def test_the_coordinator_saves_its_state_before_it_hears_of_a_checkpoints_output(
    draining: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """004-02: so what it saves cannot hold what was prepared for that checkpoint."""
    heard, deliver = list[str](), Coordinator.deliver

    def noted(coordinator: Coordinator, event: Event) -> None:
        heard.append(type(event).__name__)
        deliver(coordinator, event)

    monkeypatch.setattr(Coordinator, "deliver", noted)
    repository, recovery, settings = draining
    inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
    assert heard[:2] == ["ResetToCheckpoint", "Start"]
    once = ["CheckpointCoordinator", "CommittableEvent", "CommittableEvent", "CheckpointComplete"]
    assert len(heard) > 6
    assert heard[2:] == once * ((len(heard) - 2) // 4)


@pytest.mark.parametrize("parallelism", ["1", "2"])
def test_stale_staged_output_of_a_dead_attempt_is_forgotten_by_its_successor(
    parallelism: str, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """004-24: killed when files were closed and no checkpoint held them yet; with one subtask and with two."""
    make_slow(monkeypatch, "drain.page=sleep:0.01")
    monkeypatch.setenv("CDR_COMMIT", "per-checkpoint")
    target, checkpoint = ParquetTarget(tmp_path), fixture_checkpoint("a_p3_thr0", 2)
    wish = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), parallelism, target.name, "50ms")
    repository, recovery, settings = spilled(wish)
    assert exit_status(drain_in_child(recovery, "drain.snapshot=kill")) == -signal.SIGKILL
    written = {path.name for path in (tmp_path / target.name.partition(":")[2]).rglob("*.parquet")}
    stale = written - prepared_files(repository, recovery)
    assert stale, "a dead attempt has closed files that no checkpoint holds"
    inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    assert not stale & prepared_files(repository, recovery)
    repository.close()
    rows = target.rows()
    assert len(rows) == len({(row["gate"], row["up"], row["down"], row["pos"]) for row in rows}) == RECORDS


def prepared_files(repository: Repository, recovery: str) -> set[str]:
    """The names of the files in the rows of prepared output."""
    rows = repository.prepared(recovery)
    return {Path(file["path"]).name for row in rows for file in json.loads(row.manifest)["files"]}
