"""``cdr recover --drop-records``: what ``cdr elements --json`` printed can be handed on as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdr_core.errors import Refused
from cdr_core.planning.dropped_records import parse_drops
from tests.support.inline import WithoutSpark
from tests.support.shell import Shell
from tests.support.written import SPEC, record, write_checkpoint

REBALANCE = SPEC.format(partitioner="rebalance")


def test_lines_that_elements_printed_are_left_out_and_the_exit_status_says_partial(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdr_core.runtime.executor_backend.SparkWorkers", lambda settings: WithoutSpark())
    data = b"".join(record(key, "poison #1" if key in (2, 4) else "abc") for key in range(6))
    path = write_checkpoint(tmp_path / "chk-1", 1, 1, {(0, 0): data})
    (tmp_path / "job.yaml").write_text(REBALANCE)
    code, out, _ = shell("elements", path, "--spec", str(tmp_path / "job.yaml"), "--json")
    poison = [line for line in out.splitlines() if "poison" in line]
    assert (code, len(poison)) == (0, 2)
    (tmp_path / "poison").write_text("\n".join(["# what killed the job", *poison, "main:0:0:5  # by hand"]))
    arguments = ["--spec", str(tmp_path / "job.yaml"), "--parallelism", "same", "--to", f"parquet:{tmp_path}/out"]
    code, out, _ = shell("recover", path, *arguments, "--drop-records", str(tmp_path / "poison"), "--json")
    assert code == 6
    receipt = json.loads(Path(json.loads(out)["receipt"]).read_text())
    assert [dropped["pos"] for dropped in receipt["proof"]["dropped_by_request"]] == [2, 4, 5]
    assert receipt["verdict"] == "partial"


@pytest.mark.parametrize(
    "line",
    [
        "{",
        '{"exchange": "main", "up": 0, "down": 0}',
        '{"exchange": "main", "up": 0, "down": 0, "pos": -1}',
        '{"exchange": "main", "up": 0, "down": true, "pos": 1}',
        '{"exchange": 1, "up": 0, "down": 0, "pos": 1}',
        "[1]",
    ],
)
def test_lines_that_are_no_elements_are_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "list").write_text(line)
    with pytest.raises(Refused, match=r"is no element|is not EXCHANGE"):
        parse_drops([str(tmp_path / "list")])
