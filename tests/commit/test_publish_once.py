"""The commit protocol on the parquet target: whatever is lost in between, a publication is visible exactly once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdr_core.commit.committable import Committable, PreparedFile
from cdr_core.commit.protocol import publish_once
from cdr_core.commit.sinks import Publication, Published, sink_for
from cdr_core.commit.sinks.parquet import ParquetSink
from cdr_core.errors import CommitConflict, CommitUnknown, Fenced, Refused


class Log:
    """Rows of a commit log, in memory."""

    def __init__(self) -> None:
        self.rows: list[str] = []
        self.fenced = False

    def intend(self, base: int) -> None:
        self.rows.append(f"intent on {base}")

    def require_current(self) -> None:
        if self.fenced:
            raise Fenced("a newer attempt owns the recovery")

    def record(self, published: Published) -> None:
        self.rows.append(f"published {published.commit_id}")


def publication(user: str, file: str = "data/a.parquet", commit_id: int = 1) -> Publication:
    properties = {"cdr.commit-user": user, "cdr.commit-id": str(commit_id)}
    return Publication((PreparedFile(file, 3, 100, 7),), properties)


def visible(directory: Path) -> list[str]:
    manifests = sorted(directory.glob("_cdr/manifest-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    return [file["path"] for file in json.loads(manifests[-1].read_text())["files"]] if manifests else []


def test_a_publication_becomes_the_next_manifest_and_keeps_what_was_there(tmp_path: Path) -> None:
    sink = sink_for(f"parquet:{tmp_path}")
    for number, user in enumerate(["one", "two", "three"]):
        published, found = publish_once(sink, user, 1, publication(user, f"data/{user}"), Log())
        assert published.location.endswith(f"manifest-{number + 1}.json")
        assert not found
    assert visible(tmp_path) == ["data/one", "data/two", "data/three"]


def test_e43_published_but_not_recorded_is_found_and_not_published_again(tmp_path: Path) -> None:
    sink = sink_for(f"parquet:{tmp_path}")
    sink.publish(0, publication("me"))
    log = Log()
    _, found = publish_once(sink, "me", 1, publication("me"), log)
    assert found
    assert log.rows == ["intent on 1", "published 1"]
    assert visible(tmp_path) == ["data/a.parquet"]


def test_e48_who_was_paused_after_its_look_up_cannot_publish_after_its_successor(tmp_path: Path) -> None:
    paused = sink_for(f"parquet:{tmp_path}")
    base = paused.look_up("me").base
    publish_once(sink_for(f"parquet:{tmp_path}"), "me", 1, publication("me"), Log())
    with pytest.raises(CommitConflict):
        paused.publish(base, publication("me", "data/zombie"))
    assert visible(tmp_path) == ["data/a.parquet"]


def test_a_fenced_committer_publishes_nothing(tmp_path: Path) -> None:
    log = Log()
    log.fenced = True
    with pytest.raises(Fenced):
        publish_once(sink_for(f"parquet:{tmp_path}"), "me", 1, publication("me"), log)
    assert visible(tmp_path) == []


class LostAnswer(ParquetSink):
    """Publishes, or not, and then loses the answer."""

    applied = True

    def publish(self, base: int, publication: Publication) -> Published:
        if self.applied:
            super().publish(base, publication)
        raise CommitUnknown("the connection was reset")


def test_a_lost_answer_is_looked_up(tmp_path: Path) -> None:
    log = Log()
    published, _ = publish_once(LostAnswer(str(tmp_path)), "me", 1, publication("me"), log)
    assert published.commit_id == 1
    assert log.rows == ["intent on 0", "published 1"]
    assert visible(tmp_path) == ["data/a.parquet"]


def test_a_lost_answer_of_something_that_did_not_happen_is_not_success(tmp_path: Path) -> None:
    sink = LostAnswer(str(tmp_path))
    sink.applied = False
    log = Log()
    with pytest.raises(CommitUnknown):
        publish_once(sink, "me", 1, publication("me"), log)
    assert log.rows == ["intent on 0"]


def test_somebody_elses_publication_in_between_is_kept(tmp_path: Path) -> None:
    class Overtaken(ParquetSink):
        def publish(self, base: int, publication: Publication) -> Published:
            if base == 0:
                ParquetSink(str(tmp_path)).publish(
                    0, Publication((), {"cdr.commit-user": "other", "cdr.commit-id": "9"})
                )
            return super().publish(base, publication)

    log = Log()
    published, _ = publish_once(Overtaken(str(tmp_path)), "me", 1, publication("me"), log)
    assert published.location.endswith("manifest-2.json")
    assert log.rows == ["intent on 0", "intent on 1", "published 1"]


@pytest.mark.parametrize("target", ["parquet:", "nowhere", "kafka:topic"])
def test_a_target_that_names_no_place_is_refused(target: str) -> None:
    with pytest.raises(Refused):
        sink_for(target)


def test_a_committable_survives_its_own_text_and_an_unknown_version_is_refused() -> None:
    value = Committable(2, 1, (PreparedFile("data/x", 4, 50, 9),), 17)
    assert Committable.from_json(json.loads(json.dumps(value.to_json()))) == value
    with pytest.raises(Refused, match="version 99"):
        Committable.from_json({**value.to_json(), "version": 99})
