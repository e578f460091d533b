"""``cdr verify``: the verdict on stdout, and the exit code that scripts go by."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdr_core import settings
from cdr_core.cli import main
from cdr_core.metadata import Repository
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.sweep import sweep
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints

Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cdr", "verify", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.run()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return run


@pytest.fixture
def source(fixture_checkpoint: FixtureCheckpoints) -> FixtureCheckpoint:
    return fixture_checkpoint("a_p3_thr0", 2)


def recover(source: FixtureCheckpoint, to: Path) -> tuple[str, dict[str, Any]]:
    """Id and receipt."""
    repository, recovery, settings = inline.start(
        RecoveryRequest(str(source.path), str(source.spec), "2", f"parquet:{to}")
    )
    inline.run_all(repository, recovery, settings)
    receipt = repository.receipt(recovery)
    assert receipt is not None
    return recovery, dict(receipt)


def test_a_recovery_is_verified_by_its_id_by_its_receipt_and_by_its_parts(
    shell: Shell, source: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recovery, receipt = recover(source, tmp_path / "out")
    code, out, err = shell(recovery)
    assert (code, err) == (0, "")
    assert out.startswith("balanced: 1,878 records in the output, 1,878 expected")

    monkeypatch.setenv("CDR_HOME", str(tmp_path / "elsewhere"))
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps(receipt))
    code, out, _ = shell(str(file), "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["verdict"], found["differences"], found["unchecked"]) == ("balanced", [], [])
    assert found["source"] == found["output"]
    assert not (tmp_path / "elsewhere").exists(), "a receipt is enough, no database is made"

    code, out, _ = shell(
        "--source", str(source.path), "--output", f"parquet:{tmp_path}/out", "--spec", str(source.spec)
    )
    assert code == 0
    assert "not checked: the new parallelism was not given" in out


def test_a_recovery_that_was_over_long_ago_is_verified_after_a_sweep(
    shell: Shell, source: FixtureCheckpoint, tmp_path: Path
) -> None:
    recovery, _ = recover(source, tmp_path / "out")
    environment = {**os.environ, "CDR_SWEEP_AFTER": "0s"}
    with Repository.open(settings.load().database_url) as repository:
        swept = sweep(repository, settings.load(environment))
    assert any(leftover.path.endswith("receipt.json") and leftover.removed for leftover in swept.leftovers)
    assert shell(recovery)[0] == 0


def test_two_recoveries_in_one_target_are_told_apart(
    shell: Shell, source: FixtureCheckpoint, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    first, _ = recover(fixture_checkpoint("a_p3_thr0", 1), tmp_path / "out")
    second, _ = recover(source, tmp_path / "out")
    for recovery, records in ((first, 982), (second, 1878)):
        code, out, _ = shell(recovery, "--json")
        found = json.loads(out)
        assert (code, found["differences"], found["output"]["records"]) == (0, [], records)
        assert any("2 files of other recoveries" in line for line in found["unchecked"])
    parts = ("--output", f"parquet:{tmp_path}/out", "--spec", str(source.spec))
    assert shell("--source", str(source.path), *parts)[0] == 0


def test_a_dropped_record_is_status_2_with_its_channel(
    shell: Shell, source: FixtureCheckpoint, fixture_checkpoint: FixtureCheckpoints
) -> None:
    target = fixture_checkpoint("rw_a_drop", 2)
    parts = ("--source", str(source.path), "--output", f"checkpoint:{target.path}", "--spec", str(source.spec))
    code, out, err = shell(*parts, "--json")
    assert (code, err) == (2, "")
    found = json.loads(out)
    assert found["verdict"] == "unbalanced"
    (difference,) = found["differences"]
    expected = {"kind": "missing", "exchange": "main", "up": 0, "down": 1, "count": 1, "positions": [119]}
    assert {name: difference[name] for name in expected} == expected
    code, out, _ = shell(*parts)
    assert code == 2
    assert "main 0→1: 1 record of the source not in the output (position 119)" in out
    assert "not checked: slow: its state was redistributed without stored sums" in out
    assert any("slow: its state" in line for line in found["unchecked"])


def test_an_edited_receipt_is_status_2_and_said(shell: Shell, source: FixtureCheckpoint, tmp_path: Path) -> None:
    _, receipt = recover(source, tmp_path / "out")
    receipt["proof"]["ledgers"]["read"]["exchanges"][0]["records"] += 1
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps(receipt))
    code, out, _ = shell(str(file))
    assert code == 2
    assert "the receipt was edited" in out


def test_what_cannot_be_read_is_status_5_and_one_sentence(
    shell: Shell, source: FixtureCheckpoint, tmp_path: Path
) -> None:
    recovery, _ = recover(source, tmp_path / "out")
    data = next((tmp_path / "out").rglob("*.parquet"))
    data.write_bytes(data.read_bytes()[:-100])
    cut = Path(shutil.copytree(source.path, tmp_path / "cut"))
    (cut / "_metadata").write_bytes((source.path / "_metadata").read_bytes()[:-620])
    no_receipt = tmp_path / "no-receipt.json"
    no_receipt.write_text("{}")
    parts = ("--output", f"parquet:{tmp_path}/out", "--spec", str(source.spec))
    for arguments in (
        (recovery,),
        ("--source", str(cut), *parts),
        ("--source", "/nowhere/chk-1", *parts),
        (str(no_receipt),),
        ("/nowhere/receipt.json",),
    ):
        code, out, err = shell(*arguments)
        assert (code, out) == (5, "")
        assert err.startswith("cdr: ")
        assert err.count("\n") == 1


def test_a_recovery_without_what_is_in_quarantine_is_status_6(
    shell: Shell, source: FixtureCheckpoint, tmp_path: Path
) -> None:
    damaged = source.copy(tmp_path / "chk-2")
    largest = max(damaged.iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-3000])
    request = RecoveryRequest(str(damaged), str(source.spec), "2", f"parquet:{tmp_path}/out", on_corrupt="quarantine")
    repository, recovery, settings = inline.start(request)
    inline.run_all(repository, recovery, settings)
    code, out, _ = shell(recovery)
    assert code == 6
    assert out.startswith("partial: ")
    code, out, _ = shell(recovery, "--source", str(source.path))
    assert code == 6, "the channel reads again, and what was put aside is still missing"
    assert "but frames into records to its end" in out


def test_a_receipt_without_a_spec_takes_that_of_the_database_or_asks_for_it(
    shell: Shell, source: FixtureCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, receipt = recover(source, tmp_path / "out")
    del receipt["recovery"]["spec"], receipt["receipt_sha256"], receipt["publication"]["files"]  # an older one
    manifest = tmp_path / "out" / "_cdr" / "manifest-1.json"
    published = json.loads(manifest.read_text())
    for name in ("cdr.source-metadata-sha256", "cdr.files-sha256", "cdr.properties-sha256"):
        del published["properties"][name]
    manifest.write_text(json.dumps(published))
    file = tmp_path / "receipt.json"
    file.write_text(json.dumps(receipt))
    assert shell(str(file))[0] == 0
    monkeypatch.setenv("CDR_HOME", str(tmp_path / "elsewhere"))
    code, _, err = shell(str(file))
    assert code == 3
    assert "--spec" in err
    assert shell(str(file), "--spec", str(source.spec))[0] == 0


@pytest.mark.parametrize("arguments", [(), ("--source", "x"), ("--source", "x", "--output", "parquet:y")])
def test_half_a_request_is_a_usage_error(shell: Shell, arguments: tuple[str, ...]) -> None:
    code, _, err = shell(*arguments)
    assert code == 64
    assert "--source, --output and --spec" in err


def test_an_unknown_recovery_is_refused(shell: Shell) -> None:
    code, _, err = shell("r-nope")
    assert code == 3
    assert "r-nope" in err
