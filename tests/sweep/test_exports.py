"""Which file of a directory an export left that died, decided on names and on the `_metadata` that is there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdr_core.metadata import Export
from cdr_core.sweep.exports import _is_left, remains

MINE = "cdr-r-1-x7-abc"
COPIES = ("f00d", "beef")
SHOWN = b"..cdr-r-1-x7-abc-00002..beef.."


@pytest.mark.parametrize(
    ("file", "left"),
    [
        ("cdr-r-1-x7-abc-00001", True),
        ("cdr-r-1-x7-abc-00002", False),  # a _metadata names it
        ("cdr-r-1-x7-other-00001", False),  # another export's
        ("cdr-r-2-x7-abc-00001", False),
        ("f00d", True),
        ("beef", False),
        ("notes.txt", False),
        (".f00d.0123.tmp", True),
        (".cdr-r-1-x7-abc-00003.0123.tmp", True),
        (".notes.txt.0123.tmp", False),
    ],
)
def test_only_its_own_files_and_copies_that_nothing_names_are_left(file: str, left: bool) -> None:
    assert _is_left(file, MINE, COPIES, SHOWN) is left


def test_copies_stay_where_another_export_may_need_them() -> None:
    assert not _is_left("f00d", MINE, (), b"")
    assert _is_left("cdr-r-1-x7-abc-00001", MINE, (), b"")


def test_copies_of_a_dead_export_stay_while_another_writes_to_its_directory(tmp_path: Path) -> None:
    """Another name of the directory is the same directory."""
    (tmp_path / "to").mkdir()
    (tmp_path / "link").symlink_to("to")
    for name in ("f00d", "cdr-r-1-x7-dead-00001"):
        (tmp_path / "to" / name).touch()
    dead = Export("dead", 7, str(tmp_path / "to"), None, ("f00d",))
    live = Export("live", 8, str(tmp_path / "link"), None, ("f00d",), live=True)
    for others, left in (((live,), ["cdr-r-1-x7-dead-00001"]), ((), ["cdr-r-1-x7-dead-00001", "f00d"])):
        repository: Any = SimpleNamespace(exports=lambda _, others=others: (dead, *others))
        assert [Path(file.name).name for file in remains(repository, "r-1", dead)] == left
