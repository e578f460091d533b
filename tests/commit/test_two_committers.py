"""Committers of different processes on one target: whoever was told that it succeeded is visible."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cdr_core.commit.publish_once import publish_once
from cdr_core.errors import CommitConflict
from tests.commit.committers import run
from tests.commit.log import Log
from tests.commit.targets import SCHEMA, PaimonTarget, Target, append_by_pypaimon, kinds, prepare, publication
from tests.support.sinks import sink_of

ROUNDS = pytest.mark.parametrize("wished", [10, pytest.param(200, marks=pytest.mark.soak)])
"""Of each committer."""


def rounds(target: Target, wished: int) -> int:
    """Each look-up reads every snapshot of a Paimon table, and on S3 by a request or two each: there fewer must do."""
    return min(wished, 50) if target.name.startswith("paimon:s3:") else wished


def acknowledged(folder: Path) -> list[tuple[str, int]]:
    lines = [line.split() for path in folder.glob("acknowledged-*") for line in path.read_text().splitlines()]
    return sorted((who, int(pos)) for who, pos in lines)


def acknowledge(folder: Path, who: str, pos: int) -> None:
    with (folder / f"acknowledged-{who}").open("a") as lines:
        lines.write(f"{who} {pos}\n")


def visible(target: Target) -> list[tuple[str, int]]:
    return sorted((row["who"], row["pos"]) for row in target.rows())


def widen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look whether a snapshot's name is free and the rename to it, stock pypaimon takes a rest."""
    rename = Path.rename

    def slow(self: Path, to: Path) -> Path:
        if to.name.startswith("snapshot-"):
            time.sleep(0.5)
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", slow)


def test_stock_pypaimon_loses_commits_that_it_has_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the publish step is ours: with the window widened, both are told "done" and one row is there."""
    target = PaimonTarget(tmp_path)
    sink_of(target.name).create(SCHEMA)
    widen(monkeypatch)

    def commit(number: int) -> None:
        append_by_pypaimon(target.table(), f"c{number}", 0)
        acknowledge(tmp_path, f"c{number}", 0)

    run(2, commit, tmp_path)
    assert len(acknowledged(tmp_path)) == 2
    assert len(visible(target)) == 1


@pytest.mark.seed("004-13", "E47")
def test_with_the_same_window_nothing_of_ours_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = PaimonTarget(tmp_path)
    sink_of(target.name).create(SCHEMA)
    widen(monkeypatch)
    monkeypatch.setenv("CDR_FAULTS", "publish.before=sleep:0.5")

    def commit(number: int) -> None:
        who = f"c{number}"
        file = prepare(target.name, who, [0], who)
        publish_once(sink_of(target.name), who, 1, publication(who, file), Log())
        acknowledge(tmp_path, who, 0)

    run(2, commit, tmp_path)
    assert visible(target) == acknowledged(tmp_path) == [("c0", 0), ("c1", 0)]
    manifests = [path for path in tmp_path.glob("warehouse/db.db/rows/manifest/*") if path.is_file()]
    assert len(manifests) == 2 * 3, "who lost the race has taken its manifests away"


@pytest.mark.seed("E47")
@pytest.mark.timeout(1800)
@ROUNDS
def test_two_committers_again_and_again_what_is_acknowledged_is_visible(
    target: Target, tmp_path: Path, wished: int
) -> None:
    """Each commits under a user of its own, as two recoveries to one table do."""
    count = rounds(target, wished)

    def commit(number: int) -> None:
        who, sink = f"c{number}", sink_of(target.name)
        for pos in range(count):
            file = prepare(target.name, f"{who}/{pos}", [pos], who)
            publish_once(sink, who, pos + 1, publication(who, file, commit_id=pos + 1), Log())
            acknowledge(tmp_path, who, pos)

    run(2, commit, tmp_path)
    assert visible(target) == acknowledged(tmp_path)
    assert len(acknowledged(tmp_path)) == 2 * count
    assert target.commits() == 2 * count


@pytest.mark.seed("E47")
@pytest.mark.parametrize("empty_target", kinds("iceberg-postgresql"), indirect=True)
def test_a_catalog_on_postgresql_is_as_good_as_one_on_sqlite(target: Target, tmp_path: Path) -> None:

    def commit(number: int) -> None:
        for pos in range(5):
            file = prepare(target.name, f"{number}/{pos}", [pos], "me")
            publish_once(sink_of(target.name), "me", pos + 1, publication("me", file, commit_id=pos + 1), Log())

    run(2, commit, tmp_path)
    assert visible(target) == [("me", pos) for pos in range(5)]
    assert target.commits() == 5


@pytest.mark.seed("E47", "E48")
@pytest.mark.timeout(1800)
@ROUNDS
def test_two_attempts_at_the_same_commits_publish_each_of_them_once(
    target: Target, tmp_path: Path, wished: int
) -> None:
    """The same user and ids from two processes at once, as a zombie and its successor."""
    count = rounds(target, wished) // 2

    def commit(number: int) -> None:
        sink = sink_of(target.name)
        for pos in range(count):
            file = prepare(target.name, f"attempt{number}/{pos}", [pos], "me")
            publish_once(sink, "me", pos + 1, publication("me", file, commit_id=pos + 1), Log())

    run(2, commit, tmp_path)
    assert visible(target) == [("me", pos) for pos in range(count)]
    assert target.commits() == count


def test_a_base_is_taken_by_exactly_one_of_many(target: Target, tmp_path: Path) -> None:
    """The compare-and-swap itself: one winner, and the others know that nothing of theirs is visible."""
    base = sink_of(target.name).look_up("nobody").base

    def publish(number: int) -> None:
        who = f"c{number}"
        file = prepare(target.name, who, [number], who)
        try:
            sink_of(target.name).publish(base, publication(who, file))
        except CommitConflict:
            return
        acknowledge(tmp_path, who, number)

    run(4, publish, tmp_path)
    assert len(acknowledged(tmp_path)) == 1
    assert visible(target) == acknowledged(tmp_path)
