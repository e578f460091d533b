"""What every target promises, whatever its format: once, never over somebody else, and nothing that is not there."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from cdr_core.commit.publish_once import publish_once
from cdr_core.commit.sinks import Publication, Published, Sink
from cdr_core.errors import CommitConflict, CommitUnknown, Fenced, InDoubt, Refused, Unreadable
from tests.commit.log import Log
from tests.commit.targets import FOREIGN, Target, prepare, publication
from tests.support.sinks import sink_of


def once(target: Target, log: Log, *, user: str = "me", name: str = "a", commit_id: int = 1) -> tuple[Published, bool]:
    """A committer's whole attempt: prepared output of its own, then the protocol."""
    file = prepare(target.name, name, [1, 2, 3], user)
    return publish_once(sink_of(target.name), user, commit_id, publication(user, file, commit_id=commit_id), log)


def positions(target: Target, user: str = "me") -> list[int]:
    return sorted(row["pos"] for row in target.rows() if row["who"] == user)


def test_nobody_sees_prepared_files_before_they_are_published(target: Target) -> None:
    prepare(target.name, "a", [1, 2, 3])
    assert target.rows() == []


def test_a_publication_is_visible_with_everything_that_was_there_before(target: Target) -> None:
    for number, user in enumerate(["one", "two", "three"], start=1):
        published, found = once(target, Log(), user=user, name=user)
        assert not found
        assert sink_of(target.name).look_up(user).find(1) == published
        assert target.commits() == number
    assert [positions(target, user) for user in ("one", "two", "three")] == [[1, 2, 3]] * 3


@pytest.mark.seed("004-14", "E41")
def test_the_same_publication_twice_is_there_once(target: Target) -> None:
    first, _ = once(target, Log(), name="a")
    second, found = once(target, Log(), name="b")
    assert (second, found) == (first, True)
    assert (target.commits(), positions(target)) == (1, [1, 2, 3])


@pytest.mark.seed("E44")
def test_several_commits_of_one_user_are_told_apart_and_resumed_at_the_first_that_is_absent(target: Target) -> None:
    for commit_id in (3, 5):
        once(target, Log(), name=f"c{commit_id}", commit_id=commit_id)
    for commit_id, expected in ((3, True), (5, True), (8, False)):
        assert once(target, Log(), name=f"again{commit_id}", commit_id=commit_id)[1] is expected
    assert [entry.commit_id for entry in sink_of(target.name).look_up("me").published] == [3, 5, 8]


@pytest.mark.seed("E43")
def test_published_but_not_recorded_is_found_and_not_published_again(target: Target) -> None:
    sink = sink_of(target.name)
    log = Log()
    log.intend(sink.look_up("me").base)
    published = sink.publish(sink.look_up("me").base, publication("me", prepare(target.name, "a", [1, 2, 3])))
    again, found = once(target, log, name="b")
    assert (again, found) == (published, True)
    assert target.commits() == 1


@pytest.mark.seed("004-13", "E48")
def test_who_was_paused_after_its_look_up_cannot_publish_after_its_successor(target: Target) -> None:
    zombie = sink_of(target.name)
    base = zombie.look_up("me").base
    late = publication("me", prepare(target.name, "zombie", [7]))
    once(target, Log())
    with pytest.raises(CommitConflict):
        zombie.publish(base, late)
    assert (target.commits(), positions(target)) == (1, [1, 2, 3])


@pytest.mark.seed("E47")
def test_a_fenced_committer_publishes_nothing(target: Target) -> None:
    log = Log()
    log.fenced = True
    with pytest.raises(Fenced):
        once(target, log)
    assert target.rows() == []


@pytest.mark.seed("E46")
def test_a_database_that_is_down_before_the_intent_keeps_anything_from_being_published(target: Target) -> None:

    class Down(Log):
        def intend(self, base: str) -> None:
            raise ConnectionError("the database is down")

    with pytest.raises(ConnectionError):
        once(target, Down())
    assert target.rows() == []


class Publishing:
    """A sink whose publish step is wrapped; everything else is the real one's."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def __getattr__(self, name: str) -> object:
        return getattr(self._sink, name)


class LostAnswer(Publishing):
    """Publishes, or not, and then fails in a way nobody has thought of."""

    applied = True

    def publish(self, base: str, publication: Publication) -> Published:
        if self.applied:
            self._sink.publish(base, publication)
        raise ConnectionResetError("the line is dead")


@pytest.mark.seed("E43")
def test_a_lost_answer_is_looked_up(target: Target) -> None:
    log = Log()
    file = prepare(target.name, "a", [1, 2, 3], "me")
    published, _ = publish_once(LostAnswer(sink_of(target.name)), "me", 1, publication("me", file), log)  # type: ignore[arg-type]  # by __getattr__
    assert log.rows[-1] == f"published {published.commit_id}"
    assert (target.commits(), positions(target)) == (1, [1, 2, 3])


@pytest.mark.seed("E42", "E52")
def test_a_lost_answer_of_something_that_did_not_happen_is_no_success_and_no_file_goes(target: Target) -> None:
    sink = LostAnswer(sink_of(target.name))
    sink.applied = False
    log = Log()
    file = prepare(target.name, "a", [1, 2, 3], "me")
    with pytest.raises(CommitUnknown, match="line is dead"):
        publish_once(sink, "me", 1, publication("me", file), log)  # type: ignore[arg-type]  # by __getattr__
    assert target.rows() == []
    # The same files, in the next attempt.
    publish_once(sink_of(target.name), "me", 1, publication("me", file), log)
    assert positions(target) == [1, 2, 3]


@pytest.mark.seed("E43")
def test_a_fault_after_the_very_step_that_publishes_is_looked_up(
    target: Target, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CDR_FAULTS", "publish.after=raise")
    monkeypatch.setenv("CDR_FAULTS_LOG", str(tmp_path / "fired"))
    once(target, Log())
    assert (tmp_path / "fired").read_text() == "publish.after raise\n"
    assert (target.commits(), positions(target)) == (1, [1, 2, 3])


class Overtaken(Publishing):
    """Somebody else publishes right before, the first time."""

    def __init__(self, sink: Sink, target: Target) -> None:
        super().__init__(sink)
        self._target, self.conflicts = target, 0

    def publish(self, base: str, publication: Publication) -> Published:
        if not self.conflicts:
            self._target.foreign()
        try:
            return self._sink.publish(base, publication)
        except CommitConflict:
            self.conflicts += 1
            raise


@pytest.mark.seed("E47")
def test_somebody_elses_publication_in_between_is_a_conflict_and_both_are_visible_in_the_end(target: Target) -> None:
    log, sink = Log(), Overtaken(sink_of(target.name), target)
    publish_once(sink, "me", 1, publication("me", prepare(target.name, "a", [1, 2, 3], "me")), log)  # type: ignore[arg-type]  # by __getattr__
    assert sink.conflicts == 1
    assert len([row for row in log.rows if row.startswith("intent")]) == 2
    assert (positions(target), positions(target, FOREIGN), target.commits()) == ([1, 2, 3], [0], 2)


@pytest.mark.seed("E48")
def test_the_epoch_is_asked_for_when_nothing_is_left_to_do_but_the_step_that_publishes(
    target: Target, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After every look at the files; who is overtaken by then leaves nothing."""
    file, log = prepare(target.name, "a", [1, 2, 3], "me"), Log()
    gone = type(file)(file.path.replace("a.parquet", "gone.parquet"), file.records, file.bytes, file.crc32c)
    log.fenced = True
    with pytest.raises(Unreadable, match="is missing"):
        publish_once(sink_of(target.name), "me", 1, publication("me", file, gone), log)
    monkeypatch.setenv("CDR_FAULTS", "publish.before=raise")
    monkeypatch.setenv("CDR_FAULTS_LOG", str(tmp_path / "fired"))
    with pytest.raises(Fenced):
        publish_once(sink_of(target.name), "me", 1, publication("me", file), log)
    assert not (tmp_path / "fired").exists(), "not even begun"
    assert (target.commits(), target.rows()) == (0, [])


@pytest.mark.seed("E59")
def test_another_publication_under_the_same_number_is_in_doubt_and_not_taken_for_ours(target: Target) -> None:
    """The database lost its rows and gave the number out again."""
    file = prepare(target.name, "a", [1, 2, 3], "me")
    first = publish_once(sink_of(target.name), "me", 1, publication("me", file, proof_sha256="aa"), Log())[0]
    assert sink_of(target.name).look_up("me").published[0].proof == "aa"
    other, log = prepare(target.name, "b", [3, 4], "me"), Log()
    with pytest.raises(InDoubt, match="with other records") as caught:
        publish_once(sink_of(target.name), "me", 1, publication("me", other, proof_sha256="bb"), log)
    assert first.location in str(caught.value)
    assert (log.rows, positions(target)) == ([], [1, 2, 3])
    again = publish_once(sink_of(target.name), "me", 1, publication("me", other, proof_sha256="aa"), Log())
    assert again == (first, True)


@pytest.mark.seed("E01")
def test_the_same_source_by_another_recovery_is_refused_and_another_source_is_not(target: Target) -> None:
    """Two databases know nothing of each other; the target they share does."""
    file = prepare(target.name, "a", [1, 2, 3], "me")
    publish_once(sink_of(target.name), "me", 1, publication("me", file, source_metadata_sha256="s1"), Log())
    target.foreign()
    sink, again, log = sink_of(target.name), prepare(target.name, "b", [1, 2, 3], "you"), Log()
    with pytest.raises(Refused, match="recovery r has published this very checkpoint") as caught:
        publish_once(sink, "you", 1, publication("you", again, source_metadata_sha256="s1"), log)
    assert (caught.value.exit_code, log.rows, target.commits()) == (3, [], 2)
    publish_once(sink, "you", 1, publication("you", again, source_metadata_sha256="s2"), log)
    more = prepare(target.name, "c", [4], "me")
    publish_once(sink, "me", 2, publication("me", more, commit_id=2, source_metadata_sha256="s1"), Log())
    assert (positions(target), positions(target, "you")) == ([1, 2, 3, 4], [1, 2, 3])


@pytest.mark.seed("E50")
def test_a_prepared_file_that_is_missing_or_cut_is_named_and_nothing_is_published(target: Target) -> None:
    sink = sink_of(target.name)
    kept, lost = prepare(target.name, "kept", [1]), prepare(target.name, "lost", [2])
    gone = type(lost)(lost.path.replace("lost", "gone"), lost.records, lost.bytes, lost.crc32c)
    cut = type(lost)(lost.path, lost.records, lost.bytes - 1, lost.crc32c)
    base = sink.look_up("me").base
    for bad, said in ((gone, "is missing"), (cut, f"instead of {cut.bytes}")):
        with pytest.raises(Unreadable, match=said):
            sink.publish(base, publication("me", kept, bad))
        with pytest.raises(Unreadable, match=said):
            sink.open_file(bad)
    assert sink.look_up("me").published == ()
    assert target.rows() == []


def test_a_prepared_file_with_other_bytes_is_refused(target: Target) -> None:
    sink = sink_of(target.name)
    file = prepare(target.name, "a", [1, 2, 3])
    with sink.open_file(file) as source:
        assert source.size() == file.bytes
    with pytest.raises(Unreadable, match="changed after it was written"):
        sink.open_file(type(file)(file.path, file.records, file.bytes, file.crc32c ^ 1))


@pytest.mark.seed("E49")
def test_an_intent_older_than_what_the_target_still_shows_is_in_doubt(target: Target) -> None:
    log = Log()
    log.intend(sink_of(target.name).look_up("me").base)
    for _ in range(3):
        target.foreign()
    target.forget()
    with pytest.raises(InDoubt, match="does not go back that far"):
        once(target, log)
    assert positions(target) == []


def test_history_that_has_gone_is_no_matter_when_nobody_ever_tried(target: Target) -> None:
    for _ in range(3):
        target.foreign()
    target.forget()
    once(target, Log())
    assert positions(target) == [1, 2, 3]


def test_a_publication_without_files_is_a_publication(target: Target) -> None:
    published, _ = publish_once(sink_of(target.name), "me", 1, publication("me"), Log())
    again, found = publish_once(sink_of(target.name), "me", 1, publication("me"), Log())
    assert (again, found) == (published, True)
    assert target.rows() == []


def test_a_task_that_fails_leaves_no_file_behind(target: Target, tmp_path: Path) -> None:
    sink, batch = sink_of(target.name), pa.record_batch({"who": ["x"], "pos": [1]})

    def task() -> None:
        with sink.writer("r/unfinished", batch.schema) as writer:
            writer.write(batch)
            raise OSError("the disk is gone")

    with pytest.raises(OSError, match="disk is gone"):
        task()
    assert not [path for path in tmp_path.rglob("*unfinished*") if path.is_file()]


def test_early_refusal_makes_nothing(empty_target: Target, tmp_path: Path) -> None:
    before = sorted(path for path in tmp_path.rglob("*") if path.suffix != ".db")
    sink_of(empty_target.name).refuse_early(pa.schema([pa.field("pos", pa.int64())]))
    assert sorted(path for path in tmp_path.rglob("*") if path.suffix != ".db") == before
