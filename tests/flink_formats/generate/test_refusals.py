"""What cannot be a checkpoint is refused in one sentence, and nothing is left behind."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from cdr_core.cli import generate as command
from cdr_core.cli import main
from cdr_core.errors import DiskFull, Refused, StorageError
from tests.flink_formats.generate.made import exchange, make, spec_of

SPEC = spec_of(exchange("main", "gen", "slow", "TUPLE<LONG, LONG, STRING>"))
ALIGNED = spec_of(exchange("main", "gen", "slow", "TUPLE<LONG>", how="forward"))

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "more subtasks than key groups": ({"parallelism": "200"}, "cannot have parallelism 200"),
    "no parallelism": ({"parallelism": "same"}, "does not include operator gen"),
    "an unknown operator": ({"parallelism": "gen=1,slow=2,fast=3"}, "no exchange of the spec has an operator 'fast'"),
    "an operator left out": ({"parallelism": "gen=1"}, "does not include operator slow"),
    "a size that is none": ({"size": "much"}, "--bytes: 'much' is not a size"),
    "records the wrong way round": ({"record_bytes": "200-100"}, "records of 200 to 100 bytes"),
    "a key that is not there": ({"spec": SPEC.replace("[f0]", "[f9]")}, "exchange main: the record has no field 'f9'"),
    "no key": ({"spec": SPEC.replace("key: [f0]", "key: []")}, "exchange main: there is no key field"),
    "only aligned exchanges": ({"spec": ALIGNED}, "no in-flight data on any exchange"),
    "too much inline": ({"inline": True, "size": "1GB"}, "too many for inline state"),
    "more than any disk": ({"size": "99999999999TB"}, "more than any disk holds"),
    "another store": ({"directory": "hdfs://host/chk-1"}, "neither a local directory nor on s3"),
    "no buffer": ({"buffer": "0"}, "0 is no number of buffer"),
    "a gate that no handle can say": (
        {"spec": SPEC.replace("gate: 0", f"gate: {2**70}")},
        f"exchange main: gate {2**70} does not fit",
    ),
    "a buffer that no chunk can be": ({"buffer": "2GiB"}, "a buffer of 2147483648 bytes is longer"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_request_says_why_and_writes_nothing(tmp_path: Path, case: str) -> None:
    changed, sentence = REFUSED[case]
    wished: dict[str, Any] = {"directory": str(tmp_path / "chk"), "spec": SPEC, "parallelism": "3", "size": "10kB"}
    with pytest.raises(Refused) as refused:
        command.generate(**(wished | changed))
    assert sentence in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_holds_something_is_refused_and_an_empty_one_is_not(tmp_path: Path) -> None:
    make(tmp_path, SPEC)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(Refused, match="exists and is not empty"):
        make(tmp_path, SPEC)
    with pytest.raises(Refused, match="exists and is not empty"):
        make(tmp_path / "_metadata", SPEC)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("error", "kind"), [(errno.ENOSPC, DiskFull), (errno.EIO, StorageError), (errno.EMFILE, StorageError)]
)
def test_a_write_that_fails_takes_everything_away_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, kind: type[Exception]
) -> None:
    seen: list[list[str]] = []

    def fail(_: int) -> None:
        seen.append([file.name for file in (tmp_path / "chk").iterdir()])
        raise OSError(error, "broken on purpose")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind):
        make(tmp_path / "chk", SPEC)
    assert len(seen[0]) > 0
    assert not any("_metadata" in name for name in seen[0])
    assert not (tmp_path / "chk").exists()


def test_the_shell_prints_path_and_totals_and_exits_3_when_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    arguments = ["cdr", "generate", f"{tmp_path}/chk-1", "--spec", str(spec), "--parallelism", "2", "--bytes", "20kB"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as done:
        main.run()
    assert done.value.code == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == f"{tmp_path}/chk-1"
    assert "records and" in shown[1]
    with pytest.raises(SystemExit) as refused:
        main.run()
    assert refused.value.code == 3
    assert capsys.readouterr().err.startswith("cdr: ")
