"""Which checkpoint a drill takes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cdr_core.drill.checkpoint_search import candidates
from cdr_core.drill.choice import Candidate, choose, is_newer
from cdr_core.drill.plan import Choice
from cdr_core.errors import Unreadable
from tests.support.bucket import Bucket

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)


def aged(hours: float, number: int = 1, directory: str = "") -> Candidate:
    return Candidate(directory or f"/c/chk-{number}", number, NOW - timedelta(hours=hours))


def test_the_latest_is_the_one_that_was_written_last_whatever_its_number() -> None:
    found = [aged(3, 7), aged(1, 2), aged(2, 9)]
    assert choose(found, Choice(), NOW, 0, "/c").number == 2
    same_time = [aged(1, 2), aged(1, 10), aged(1, 9)]
    assert choose(same_time, Choice(), NOW, 0, "/c").number == 10


def test_a_random_one_is_within_its_window_and_the_same_for_the_same_seed() -> None:
    found = [aged(hours, hours) for hours in range(1, 30)]
    chosen = [choose(found, Choice(10 * 3600), NOW, seed, "/c").number for seed in range(200)]
    assert set(chosen) == set(range(1, 11))
    assert chosen == [choose(found[::-1], Choice(10 * 3600), NOW, seed, "/c").number for seed in range(200)]


def test_nothing_to_choose_from_is_an_error_and_never_a_drill_of_nothing() -> None:
    with pytest.raises(Unreadable, match="no complete checkpoint lies in /c"):
        choose([], Choice(), NOW, 0, "/c")
    with pytest.raises(Unreadable, match=r"the newest, /c/chk-1, was written 7,200 s ago"):
        choose([aged(2)], Choice(3600), NOW, 0, "/c")


def test_a_checkpoint_is_new_once() -> None:
    seen = ("/c/chk-1", aged(3).modified.isoformat())
    assert is_newer(aged(1, 2), [])
    assert is_newer(aged(1, 2), [seen])
    assert not is_newer(aged(3, 1), [seen])
    assert not is_newer(aged(5, 0), [seen]), "older than what was drilled"
    assert is_newer(aged(1, 2), [("/c", None)]), "a drill that found none has seen none"


def checkpoint(directory: Path) -> str:
    directory.mkdir(parents=True)
    (directory / "_metadata").write_bytes(b"x")
    return str(directory)


def test_checkpoints_are_found_in_a_jobs_directory_and_in_those_of_many_jobs(tmp_path: Path) -> None:
    one, two = checkpoint(tmp_path / "job-a" / "chk-1"), checkpoint(tmp_path / "job-a" / "chk-12")
    other = checkpoint(tmp_path / "job-b" / "chk-3")
    (tmp_path / "job-b" / "chk-4").mkdir()  # not complete
    (tmp_path / "job-b" / "shared").mkdir()
    (tmp_path / "job-a" / "taskowned").touch()
    assert {each.directory for each in candidates(str(tmp_path))} == {one, two, other}
    assert {(each.directory, each.number) for each in candidates(str(tmp_path / "job-a"))} == {(one, 1), (two, 12)}
    assert [each.directory for each in candidates(one)] == [one]


def test_a_place_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(Unreadable, match="is no directory"):
        candidates(str(tmp_path / "none"))
    assert candidates(str(tmp_path)) == ()


def test_checkpoints_on_s3_are_found_alike(bucket: Bucket) -> None:
    from cdr_core.storage import storage_for

    root = bucket.uri()
    for name in ("job/chk-1/_metadata", "job/chk-2/_metadata", "job/chk-3/part", "chk-9/_metadata"):
        storage_for(root).create(f"{root}/{name}", b"x")
    assert {each.number for each in candidates(root)} == {1, 2, 9}
    assert [each.directory for each in candidates(f"{root}/job/chk-2")] == [f"{root}/job/chk-2"]
