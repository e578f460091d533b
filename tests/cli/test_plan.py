"""``cdr plan``: numbers that add up, estimates that say so, every refusal at once, and nothing left behind."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from cdr_core.cli import main
from cdr_core.flink.metadata import read_metadata, write_metadata
from cdr_core.flink.operator_id import operator_id_of_uid
from cdr_core.inspection import what_if
from cdr_core.metadata import Phase, Repository
from tests.rescale.inflight import At, Op, checkpoint_of, exchange, frame, spec_of
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints


class Planner:
    """Runs ``cdr plan`` in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def text(self, *arguments: str) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["cdr", "plan", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.run()
        shown = self._capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    def value(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        code, out, err = self.text(*arguments, "--json")
        assert err == ""
        assert out.count("\n") == 1
        return code, cast(dict[str, Any], json.loads(out))


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Planner:
    return Planner(monkeypatch, capsys)


def of(checkpoint: FixtureCheckpoint, parallelism: str = "2", spec: str = "") -> list[str]:
    return [str(checkpoint.path), "--spec", spec or str(checkpoint.spec), "--parallelism", parallelism]


@pytest.mark.parametrize(("name", "parallelism"), [("a_p3_thr0", "2"), ("g_p7_thr0", "2"), ("d_p4_thr0", "3")])
def test_estimates_add_up_to_what_is_in_flight_and_lie_between_their_bounds(
    planner: Planner, fixture_checkpoint: FixtureCheckpoints, name: str, parallelism: str
) -> None:
    checkpoint = fixture_checkpoint(name, 2)
    code, value = planner.value(*of(checkpoint, parallelism), "--estimate")
    in_flight = sum(c.input_bytes + c.output_bytes for c in checkpoint.oracle.channels.values())
    assert (code, value["refused"], value["exact"]) == (0, [], False)
    assert value["totals"]["bytes"] == in_flight == sum(e["bytes"] for e in value["exchanges"])
    assert value["totals"]["channels"] == len(checkpoint.oracle.channels)
    assert sum(subtask["bytes"] for subtask in value["subtasks"]) == in_flight
    for subtask in value["subtasks"]:
        assert subtask["records"] is None
        assert subtask["bytes_min"] <= subtask["bytes"] <= subtask["bytes_max"]
        assert subtask["spill"] >= subtask["bytes"]
        mine = subtask["virtual_channels"]
        assert sum(channel["bytes"] for channel in mine) == subtask["bytes"]
        assert len(mine) == subtask["channels"]
        assert mine[0].keys() == {"exchange", "up", "down", "new_up", "ambiguous", "bytes"}
    known = sum(subtask["bytes_min"] for subtask in value["subtasks"])
    assert known + sum(e["ambiguous_bytes"] for e in value["exchanges"]) == in_flight
    assert value["skew"]["slow"] >= 1


@pytest.mark.parametrize("parallelism", [1, 2, 4, 5])
def test_by_default_it_counts_what_flink_would_hand_to_each_new_subtask(
    planner: Planner, fixture_checkpoint: FixtureCheckpoints, parallelism: int
) -> None:
    checkpoint = fixture_checkpoint("g_p7_thr0", 2)
    code, value = planner.value(*of(checkpoint, str(parallelism)))
    owners = [element.owner(parallelism) for element in checkpoint.oracle.records]
    assert (code, value["exact"]) == (0, True)
    assert [s["records"] for s in value["subtasks"]] == [owners.count(index) for index in range(parallelism)]
    assert value["totals"]["records"] == len(owners)
    assert all(s["bytes_min"] == s["bytes"] == s["bytes_max"] for s in value["subtasks"])
    for subtask in value["subtasks"]:
        assert sum(channel["bytes"] for channel in subtask["virtual_channels"]) == subtask["bytes"]
        for channel in subtask["virtual_channels"]:
            assert channel["new_up"] == channel["up"] % parallelism
    others = value["totals"]["bytes"] - sum(s["bytes"] for s in value["subtasks"])
    assert others == sum(13 if e.kind == "watermark" else 0 for e in checkpoint.oracle.elements)


def test_more_than_a_few_hundred_megabytes_are_counted_only_on_request(
    planner: Planner, fixture_checkpoint: FixtureCheckpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = of(fixture_checkpoint("a_p3_thr0", 2))
    assert what_if.COUNTED_UP_TO == 256_000_000
    monkeypatch.setattr(what_if, "COUNTED_UP_TO", 1000)
    assert planner.value(*arguments)[1]["totals"]["records"] is None
    assert planner.value(*arguments, "--exact")[1]["totals"]["records"] == 1878
    code, _, err = planner.text(*arguments, "--exact", "--estimate")
    assert (code, "contradict" in err) == (64, True)


def test_operators_of_one_name_are_told_apart_by_their_ids(planner: Planner, tmp_path: Path) -> None:
    ops = [Op(uid, 2, inputs={At(0, 0, 0): frame(1, 1)}) for uid in ("left", "right")]
    checkpoint_of(Op("gen", 2), *ops, directory=tmp_path / "chk-1")
    file = tmp_path / "chk-1" / "_metadata"
    metadata = read_metadata(file.read_bytes())
    twins = tuple(o if o.uid == "gen" else replace(o, uid=None, name="twin") for o in metadata.operators)
    file.write_bytes(write_metadata(replace(metadata, operators=twins)))
    spec = spec_of(
        exchange("one", "gen", "left", "rebalance"), exchange("two", "gen", "right", "rebalance", partition=1)
    )
    _, value = planner.value(str(tmp_path / "chk-1"), "--spec", spec, "--parallelism", "same")
    ids = {operator_id_of_uid(uid) for uid in ("left", "right")}
    assert value["skew"].keys() == {subtask["operator"] for subtask in value["subtasks"]} == ids


def test_an_exchange_shows_both_ends_its_channels_and_how_many_are_ambiguous(
    planner: Planner, fixture_checkpoint: FixtureCheckpoints
) -> None:
    _, value = planner.value(*of(fixture_checkpoint("a_p3_thr0", 2), "slow=2,gen=5"))
    (shown,) = value["exchanges"]
    assert (shown["up"], shown["down"], shown["max_parallelism"]) == ([3, 5], [3, 2], 128)
    assert (shown["channels"], shown["ambiguous"]) == (9, 3)
    assert value["plan"]


def test_text_says_what_is_an_estimate_what_was_counted_and_where_the_speed_is_from(
    planner: Planner, fixture_checkpoint: FixtureCheckpoints
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    code, out, _ = planner.text(*of(checkpoint), "--estimate")
    assert code == 0
    for shown in ("estimate", "split evenly", "--exact counts", "assumed", "█", "slow gate 0 3 → 2", "spill: about"):
        assert shown in out
    _, out, _ = planner.text(*of(checkpoint), "--exact", "--throughput", "50MB")
    for shown in ("counted", "1,878 records", "configured by --throughput"):
        assert shown in out
    _, out, _ = planner.text(*of(checkpoint, "1"), "--estimate")
    assert "by the sizes of whole channels" in out


def test_time_is_the_start_and_the_bytes_at_the_given_speed(
    planner: Planner, fixture_checkpoint: FixtureCheckpoints
) -> None:
    _, value = planner.value(*of(fixture_checkpoint("a_p3_thr0", 2)), "--throughput", "10KB/s")
    time = value["time"]
    assert time["bytes_per_second"] == 10_000
    assert time["seconds"] == pytest.approx(time["start_seconds"] + value["totals"]["bytes"] / 10_000, abs=0.1)
    for subtask in value["subtasks"]:
        assert subtask["seconds"] == pytest.approx(subtask["bytes"] / 10_000, abs=0.1)
    code, _, err = planner.text(*of(fixture_checkpoint("a_p3_thr0", 2)), "--throughput", "fast")
    assert (code, "--throughput 'fast'" in err) == (3, True)


def test_measured_speed_is_that_of_finished_recoveries_large_enough_to_tell() -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)

    def phases(moved: int, span: float) -> tuple[SimpleNamespace, ...]:
        end = begin + timedelta(seconds=span / len(Phase))
        return tuple(SimpleNamespace(name=p, bytes_done=moved, started_at=begin, ended_at=end) for p in Phase)

    known = {"large": phases(10**9, 26.0), "larger": phases(4 * 10**9, 26.0), "small": phases(1000, 6.0)}
    repository = SimpleNamespace(
        recoveries=lambda **_: [SimpleNamespace(id=name) for name in known], phases=lambda name: known[name]
    )
    speeds = what_if._finished_speeds(cast(Repository, repository))
    assert speeds == pytest.approx([5e7, 2e8])


def test_every_refusal_is_shown_and_the_exit_code_is_3(
    planner: Planner, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    checkpoint = fixture_checkpoint("g_p7_thr0", 2)
    spec = checkpoint.spec.read_text().replace("f0", "f9", 1).replace("name: bytes", "name: raw")
    arguments = of(checkpoint, "slow=200,ghost=1", spec)
    code, value = planner.value(*arguments, "--to", "kafka:topic", "--exact")
    assert code == 3
    assert value["plan"] is None
    sentences = [refusal["what"] for refusal in value["refused"]]
    for part in ("named like a column", "no operator 'ghost'", "max parallelism is 128", "'f9'", "gate 1", "'kafka'"):
        assert sum(part in sentence for sentence in sentences) == 1, part
    code, out, _ = planner.text(*arguments)
    assert code == 3
    assert "refused" in out
    assert out.count("no operator 'ghost'") == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"parallelism": "many"}, "'many' is not a number"),
        ({"spec": "job: ["}, "cannot be read"),
        ({"spec": "job: [\nexchanges:"}, "not YAML"),
        ({"spec": "exchanges: []"}, "lists no exchanges"),
    ],
)
def test_a_wish_or_spec_that_is_none_is_a_refusal_like_others(
    planner: Planner, fixture_checkpoint: FixtureCheckpoints, changes: dict[str, str], sentence: str
) -> None:
    code, value = planner.value(*of(fixture_checkpoint("a_p3_thr0", 2), **changes))
    assert code == 3
    assert sentence in value["refused"][0]["what"]
    assert len(value["refused"]) == 1


def test_what_cannot_be_read_exits_5(planner: Planner, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    code, out, err = planner.text(str(tmp_path), "--spec", str(checkpoint.spec), "--parallelism", "2")
    assert (code, out) == (5, "")
    assert "is not a checkpoint" in err
    broken = checkpoint.copy(tmp_path / "broken")
    for file in broken.iterdir():
        if file.name != "_metadata":
            file.write_bytes(file.read_bytes()[:-100])
    arguments = [str(broken), "--spec", str(checkpoint.spec), "--parallelism", "2"]
    assert planner.text(*arguments, "--estimate")[0] == 0
    code, value = planner.value(*arguments)
    assert code == 5
    assert value["refused"][0]["exit_code"] == 5
    assert value["exact"] is False


def test_exact_shows_that_the_spec_has_the_wrong_key(planner: Planner, fixture_checkpoint: FixtureCheckpoints) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    code, value = planner.value(*of(checkpoint, "2", checkpoint.spec.read_text().replace("f0", "f2")), "--exact")
    assert code == 3
    assert "belong to other subtasks" in value["refused"][0]["what"]
    assert "on its way to another" in value["refused"][1]["what"]
    assert value["refused"][1]["exchange"] == "main"


def test_a_target_is_looked_at_as_a_recovery_would(
    planner: Planner, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    arguments = of(fixture_checkpoint("a_p3_thr0", 2))
    assert planner.value(*arguments, "--to", f"parquet:{tmp_path / 'out'}")[0] == 0
    (tmp_path / "file").touch()
    code, value = planner.value(*arguments, "--to", f"parquet:{tmp_path / 'file' / 'out'}")
    assert code == 3
    assert "cannot be written" in value["refused"][0]["what"]


def test_a_spill_beyond_the_spill_directories_is_warned_of(
    planner: Planner, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDR_SPILL_DIRS", f"{tmp_path}:10KiB")
    code, value = planner.value(*of(fixture_checkpoint("a_p3_thr0", 2)))
    assert code == 0
    assert "does not fit CDR_SPILL_DIRS" in value["warnings"][0]


def test_a_what_if_leaves_nothing_behind(
    planner: Planner, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    planner.value(*of(checkpoint), "--exact", "--to", f"parquet:{tmp_path / 'out'}")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".cdr/*.db"))


def test_a_custom_exchange_is_split_evenly_until_it_is_counted(planner: Planner, tmp_path: Path) -> None:
    data = b"".join(frame(key, key) for key in (4, 8, 12, 16, 17))
    checkpoint_of(Op("gen", 1), Op("slow", 2, inputs={At(1, 0, 0): data}), directory=tmp_path / "chk-1")
    spec = spec_of(exchange(how="custom", more="owner: tests.rescale.routing:by_key"))
    arguments = [str(tmp_path / "chk-1"), "--spec", spec, "--parallelism", "4"]
    _, value = planner.value(*arguments, "--estimate")
    assert [subtask["bytes"] for subtask in value["subtasks"]] == [22, 21, 21, 21]
    assert [(subtask["bytes_min"], subtask["bytes_max"]) for subtask in value["subtasks"]] == [(0, 85)] * 4
    _, value = planner.value(*arguments, "--exact")
    assert [subtask["records"] for subtask in value["subtasks"]] == [4, 1, 0, 0]
    assert value["skew"]["slow"] == 3.2


@pytest.mark.parametrize(("down", "misplaced"), [(0, 1), (1, 4)])
def test_exact_warns_of_an_owner_function_that_contradicts_where_records_were_going(
    planner: Planner, tmp_path: Path, down: int, misplaced: int
) -> None:
    data = b"".join(frame(key, key) for key in (4, 6, 8, 10, 17))
    checkpoint_of(Op("gen", 1), Op("slow", 2, inputs={At(down, 0, 0): data}), directory=tmp_path / "chk-1")
    spec = spec_of(exchange(how="custom", more="owner: tests.rescale.routing:by_key"))
    arguments = [str(tmp_path / "chk-1"), "--spec", spec, "--parallelism"]
    code, value = planner.value(*arguments, "4", "--exact")
    assert code == 0
    assert f"would have sent {misplaced} of 5 records elsewhere" in value["warnings"][0]
    assert planner.value(*arguments, "same", "--exact")[1]["warnings"] == []


@pytest.mark.seed("004-18")
def test_a_table_that_cannot_be_appended_to_is_refused_by_name_in_the_plan(
    planner: Planner, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    """A Paimon table with a primary key needs writers that cdr has not."""
    from pypaimon import CatalogFactory, Schema

    catalog = CatalogFactory.create({"warehouse": str(tmp_path)})
    catalog.create_database("db", True)
    columns = pa.schema([pa.field("pos", pa.int64(), nullable=False)])
    schema = Schema.from_pyarrow_schema(columns, primary_keys=["pos"], options={"bucket": "1"})
    catalog.create_table("db.rows", schema, False)
    code, value = planner.value(*of(fixture_checkpoint("a_p3_thr0", 2)), "--to", f"paimon:{tmp_path}/db.rows")
    assert code == 3
    assert any("table db.rows has a primary key" in str(refusal) for refusal in value["refused"])
