"""The protocol's own rules, and what travels from writers to the commit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cdr_core.commit import publish_once as protocol
from cdr_core.commit.committable import Committable, PreparedFile
from cdr_core.commit.publish_once import publish_once
from cdr_core.commit.sinks import LookUp, Publication, Published, Sink
from cdr_core.commit.sinks.checkpoint import CheckpointSink
from cdr_core.commit.sinks.none import NoneSink
from cdr_core.commit.sinks.parquet import ParquetSink
from cdr_core.errors import CommitConflict, Fenced, InDoubt, Refused, StorageError
from cdr_core.targets import Target
from tests.commit.log import Log
from tests.commit.targets import publication
from tests.support.sinks import sink_of


def test_a_target_that_is_always_faster_ends_the_attempt_and_not_the_recovery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Busy(ParquetSink):
        def publish(self, base: str, publication: Publication) -> Published:
            raise CommitConflict("somebody was faster")

    monkeypatch.setattr(protocol, "MAXIMUM_CONFLICTS", 5)
    log = Log()
    with pytest.raises(CommitConflict, match="5 times") as caught:
        publish_once(Busy(str(tmp_path)), "me", 1, publication("me"), log)
    assert caught.value.retry_helps
    assert log.rows == ["intent on 0"] * 5


@pytest.mark.seed("E40")
def test_the_intent_is_durable_before_the_target_is_touched(tmp_path: Path) -> None:

    class Asking(ParquetSink):
        def publish(self, base: str, publication: Publication) -> Published:
            assert log.rows == [f"intent on {base}"]
            return super().publish(base, publication)

    log = Log()
    publish_once(Asking(str(tmp_path)), "me", 1, publication("me"), log)
    assert log.rows == ["intent on 0", "published 1"]


@pytest.mark.seed("E48")
@pytest.mark.parametrize("kind", ["none", "checkpoint"])
def test_who_was_overtaken_is_stopped_right_before_the_step_that_publishes(tmp_path: Path, kind: str) -> None:
    """The tables have their own test of it."""
    log = Log()
    log.fenced = True
    sink: Sink = NoneSink() if kind == "none" else CheckpointSink(str(tmp_path), b"metadata", {"files": []})
    with pytest.raises(Fenced):
        publish_once(sink, "me", 1, publication("me"), log)
    assert log.rows == ["intent on nothing"]
    assert not (tmp_path / "_metadata").exists()


@pytest.mark.parametrize(
    "target",
    [
        *("parquet:", "nowhere", "kafka:topic", "none:somewhere"),
        *("iceberg:lake", "iceberg:lake/table", "iceberg:/db.table", "iceberg:lake/db/table.x"),
        *("paimon:/w/table", "paimon:db.table", "paimon:/w/db.t$branch"),
        *("paimon:s3://db.t", "paimon:s3:///db.t", "paimon:s3://w/table", "paimon:gs://w/db.t"),
    ],
)
def test_a_target_that_names_no_place_is_refused(target: str) -> None:
    with pytest.raises(Refused):
        sink_of(target)


def test_the_name_of_a_catalog_is_not_made_a_path() -> None:
    assert [
        Target.parse(each).kind.has_path for each in ("parquet:out", "paimon:w/db.t", "iceberg:lake/db.t", "none:")
    ] == [
        *(True, True),
        *(False, False),
    ]


def test_a_committable_survives_its_own_text_and_an_unknown_version_is_refused() -> None:
    value = Committable(2, 1, (PreparedFile("data/x", 4, 50, 9),), 17)
    assert Committable.from_json(json.loads(json.dumps(value.to_json()))) == value
    with pytest.raises(Refused, match="version 99"):
        Committable.from_json({**value.to_json(), "version": 99})


def test_a_failure_whose_base_the_target_has_forgotten_is_in_doubt(tmp_path: Path) -> None:
    """The publication may have happened and be out of sight: "not found" is no proof that it did not."""

    class Forgetting(ParquetSink):
        failed = False

        def publish(self, base: str, publication: Publication) -> Published:
            self.failed = True
            raise StorageError("the connection broke")

        def look_up(self, commit_user: str) -> LookUp:
            seen = super().look_up(commit_user)
            return replace(seen, base="later", known=frozenset({"later"})) if self.failed else seen

    with pytest.raises(InDoubt, match="does not go back that far"):
        publish_once(Forgetting(str(tmp_path)), "me", 1, publication("me"), Log())
