"""kill -9 at every step of a commit, and zombies that wake between look-up and publish: one publication."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdr_core.commit.publish_once import publish_once
from cdr_core.commit.sinks import Publication
from cdr_core.errors import Fenced, Unreadable
from cdr_core.metadata import Phase, Repository
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.settings import Settings
from tests.commit.killing import FENCED, wait_for
from tests.commit.log import FileLog
from tests.commit.targets import Target, kinds, prepare, publication
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.sinks import sink_of
from tests.support.victim import Victim

BEFORE = ("commit.intent", "commit.before-publish", "publish.before")
AFTER = ("publish.after", "commit.published", "commit.recorded")


def commit_in_child(target: Target, what: Publication, log: Path, faults: str) -> int:
    """The process id of a committer that meets these faults."""
    pid = os.fork()
    if pid == 0:
        os.environ["CDR_FAULTS"], os.environ["CDR_FAULTS_LOG"] = faults, str(log.with_name("fired"))
        code = 70
        try:
            publish_once(sink_of(target.name), "me", 1, what, FileLog(log))
            code = 0
        except Fenced:
            code = FENCED
        finally:
            os._exit(code)
    return pid


def wait(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.seed("E40", "E41", "E42", "E43", "E45")
@pytest.mark.parametrize("empty_target", kinds("parquet", "s3", "iceberg", "paimon"), indirect=True)
@pytest.mark.parametrize("step", [*BEFORE, *AFTER])
def test_killed_at_any_step_the_next_attempt_ends_with_one_publication(
    target: Target, tmp_path: Path, step: str
) -> None:
    log, what = tmp_path / "log", publication("me", prepare(target.name, "a", [1, 2, 3], "me"))
    assert wait(commit_in_child(target, what, log, f"{step}=kill")) == -signal.SIGKILL
    assert (tmp_path / "fired").read_text() == f"{step} kill\n"
    assert target.commits() == (1 if step in AFTER else 0)
    _, found = publish_once(sink_of(target.name), "me", 1, what, FileLog(log))
    assert found is (step in AFTER)
    assert (target.commits(), len(target.rows())) == (1, 3)


@pytest.mark.seed("E48", "E56")
@pytest.mark.parametrize("step", ["commit.before-publish", "publish.before"])
def test_a_zombie_between_look_up_and_publish_finds_its_successors_publication(
    target: Target, tmp_path: Path, step: str
) -> None:
    """Stopped right before the step that publishes, and it publishes nothing; its fence would not have
    stopped it any more.
    """
    log, hold = tmp_path / "log", tmp_path / "hold"
    hold.touch()
    zombie = commit_in_child(
        target, publication("me", prepare(target.name, "old", [7, 8], "me")), log, f"{step}=pause:{hold}"
    )
    wait_for(tmp_path / "fired")
    os.kill(zombie, signal.SIGSTOP)
    successor = publication("me", prepare(target.name, "new", [1, 2, 3], "me"))
    publish_once(sink_of(target.name), "me", 1, successor, FileLog(log))
    hold.unlink()
    os.kill(zombie, signal.SIGCONT)
    assert wait(zombie) == 0
    assert target.commits() == 1
    assert sorted(row["pos"] for row in target.rows()) == [1, 2, 3]


@pytest.fixture
def recovery(
    empty_target: Target, fixture_checkpoint: FixtureCheckpoints
) -> Iterator[tuple[Repository, str, Settings]]:
    """Everything but the commit is done."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", empty_target.name)
    repository, recovery_id, settings = inline.start(request)
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL, Phase.DRAIN):
        inline.run(repository, recovery_id, phase, settings)
    yield repository, recovery_id, settings
    repository.close()


@pytest.mark.seed("004-16", "E43")
@pytest.mark.parametrize("empty_target", kinds("s3", "iceberg", "paimon", "paimon-s3"), indirect=True)
def test_a_whole_commit_phase_killed_between_publish_and_record_finds_what_it_published(
    recovery: tuple[Repository, str, Settings], empty_target: Target, tmp_path: Path
) -> None:
    repository, recovery_id, settings = recovery
    assert Victim(Phase.COMMIT, recovery_id, "publish.after=kill", tmp_path / "fired").wait() == -signal.SIGKILL
    result = inline.run(repository, recovery_id, Phase.COMMIT, settings)
    assert (result["verdict"], result["records"]) == ("balanced", 1878)
    assert (empty_target.commits(), len(empty_target.rows())) == (1, 1878)
    (entry,) = repository.commit_log(recovery_id)
    assert (str(entry.state), entry.location) == ("DONE", result["location"])


@pytest.mark.seed("E48", "E56")
@pytest.mark.parametrize("empty_target", ["iceberg", "paimon"], indirect=True)
def test_a_whole_commit_phase_that_wakes_after_its_successor_finished_changes_nothing(
    recovery: tuple[Repository, str, Settings], empty_target: Target, tmp_path: Path
) -> None:
    repository, recovery_id, settings = recovery
    hold = tmp_path / "hold"
    hold.touch()
    zombie = Victim(Phase.COMMIT, recovery_id, f"publish.before=pause:{hold}", tmp_path / "fired")
    wait_for(tmp_path / "fired")
    os.kill(zombie.pid, signal.SIGSTOP)
    inline.run(repository, recovery_id, Phase.COMMIT, settings)
    hold.unlink()
    os.kill(zombie.pid, signal.SIGCONT)
    assert zombie.wait() == FENCED
    assert (empty_target.commits(), len(empty_target.rows())) == (1, 1878)


@pytest.mark.seed("E43")
@pytest.mark.parametrize("empty_target", ["parquet"], indirect=True)
def test_what_is_published_is_recorded_though_others_have_removed_its_files_since(
    recovery: tuple[Repository, str, Settings], empty_target: Target, tmp_path: Path
) -> None:
    """Upkeep of a table rewrites files and removes the old ones; a retry does not need them any more."""
    repository, recovery_id, settings = recovery
    assert Victim(Phase.COMMIT, recovery_id, "publish.after=kill", tmp_path / "fired").wait() == -signal.SIGKILL
    data = [path for path in tmp_path.rglob("*.parquet") if path.is_file()]
    assert data
    for path in data:
        path.unlink()
    result = inline.run(repository, recovery_id, Phase.COMMIT, settings)
    assert (result["verdict"], result["records"], empty_target.commits()) == ("balanced", 1878, 1)
    (entry,) = repository.commit_log(recovery_id)
    assert (str(entry.state), entry.location) == ("DONE", result["location"])


@pytest.mark.seed("E50")
@pytest.mark.parametrize("empty_target", ["parquet"], indirect=True)
def test_what_is_not_published_is_read_again_by_every_attempt(
    recovery: tuple[Repository, str, Settings], empty_target: Target, tmp_path: Path
) -> None:
    repository, recovery_id, settings = recovery
    assert Victim(Phase.COMMIT, recovery_id, "publish.before=kill", tmp_path / "fired").wait() == -signal.SIGKILL
    next(path for path in tmp_path.rglob("*.parquet") if path.is_file()).unlink()
    with pytest.raises(Unreadable, match="is missing"):
        inline.run(repository, recovery_id, Phase.COMMIT, settings)
    assert empty_target.commits() == 0
