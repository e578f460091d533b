"""Generated checkpoints are what Flink would have left behind, as far as our own readers can tell."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdr_core.flink.keys import owner
from cdr_core.flink.operator_id import operator_id_of_uid
from tests.flink_formats.generate.made import Made, exchange, make, spec_of

TUPLE = "TUPLE<LONG, INT, LONG, STRING>"
ROW = "ROW<id STRING, gen INT, note NULLABLE<STRING>, seq LONG, data BYTES>"
POJO = "POJO<id INT, zone STRING, seq LONG, at INSTANT, payload STRING>"
ROWDATA = "ROWDATA<id BIGINT, gen INT, amount DECIMAL(20, 2), text STRING, seq BIGINT, at TIMESTAMP(6)>"


def single(record: str, how: str = "hash") -> str:
    return spec_of(exchange("main", "gen", "slow", record, how=how))


def numbers(table: pa.Table, exchange_name: str) -> list[tuple[int, int]]:
    """(origin, sequence) of the records; types without a second integer have origin 0."""
    values = table.filter(pa.compute.equal(table["kind"], "record"))[exchange_name].to_pylist()
    origin, sequence = ("f1", "f2") if "f0" in values[0] else ("gen", "seq")
    return [(value.get(origin, 0), value[sequence]) for value in values]


@pytest.mark.parametrize("inline", [False, True], ids=["files", "inline"])
@pytest.mark.parametrize(
    ("record", "version"), [(TUPLE, 3), (ROW, 4), (POJO, 5), (ROWDATA, 6)], ids=["tuple", "row", "pojo", "rowdata"]
)
def test_what_was_made_is_read_back_with_equal_totals_order_and_owners(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], record: str, version: int, inline: bool
) -> None:
    made = make(tmp_path / "chk", single(record), version=version, inline=inline, buffer="1kB", as_json=True)
    said = json.loads(capsys.readouterr().out)
    totals = made.description["totals"]
    assert made.description["version"] == version
    assert totals == said["totals"] == {name: said[name] for name in ("bytes", "buffers", "records", "elements")}
    assert said["path"] == str(made.path)
    assert said["files"] == len(list(made.path.iterdir()))
    assert abs(said["bytes"] - 100_000) < 9 * 250
    assert (said["files"] == 1) is inline
    seen: list[tuple[int, int]] = []
    for channel, table in made.tables():
        found = numbers(table, "main")
        assert all(before[1] < after[1] for before, after in pairwise(found))
        seen += found
        groups = table["key_group"].drop_null().to_pylist()
        assert {owner(group, 3, 128) for group in groups} == {channel.down}
    assert len(seen) == len(set(seen)) == said["records"]


def test_every_record_of_many_subtasks_is_there_once_and_with_its_owner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"keys": 3000, "max_parallelism": 4096, "as_json": True}
    made = make(tmp_path / "chk", single(TUPLE), "64", "800kB", upstream=48, **options)
    said = json.loads(capsys.readouterr().out)
    assert (said["files"], said["exchanges"][0]["channels"]) == (24, 48 * 64 - 153)
    by_up: dict[int, list[int]] = defaultdict(list)
    for channel, table in made.tables():
        for origin, sequence in numbers(table, "main"):
            assert (origin, sequence % 64) == (channel.up, channel.down)
            by_up[channel.up].append(sequence)
        assert {owner(group, 64, 4096) for group in table["key_group"].drop_null().to_pylist()} == {channel.down}
    assert len(by_up) == 48
    assert all(len(found) == len(set(found)) for found in by_up.values())
    assert sum(len(found) for found in by_up.values()) == said["records"]
    assert made.description["totals"] == said["totals"]


def test_several_exchanges_gates_and_partitioners_share_one_checkpoint(tmp_path: Path) -> None:
    text = spec_of(
        exchange("words", "gen", "join", TUPLE),
        exchange("rows", "rows", "join", ROWDATA, gate=1),
        exchange("spread", "join", "map", POJO, how="rebalance"),
        exchange("all", "map", "count", "LONG", how="global"),
        exchange("mixed", "map", "other", "OPAQUE", partition=1, how="shuffle"),
    )
    made = make(tmp_path / "chk", text, "3", "400kB", upstream=2)
    described = {e["name"]: e for e in made.description["exchanges"]}
    assert all(80_000 - 2000 < e["bytes"] < 80_000 + 2000 for e in described.values())
    operators = {o["uid"]: o["parallelism"] for o in made.description["operators"]}
    assert operators == {"gen": 2, "join": 3, "rows": 2, "map": 3, "count": 3, "other": 3}
    assert {c["down"] for c in described["all"]["channels"]} == {0}
    assert {(c["up"], c["down"]) for c in described["spread"]["channels"]} == {
        (u, d) for u in range(3) for d in range(3)
    }
    assert sum(table.num_rows for _, table in made.tables()) == made.description["totals"]["elements"]


def test_exchanges_that_flink_keeps_aligned_have_no_data_nor_have_their_neighbours(tmp_path: Path) -> None:
    text = spec_of(
        exchange("keyed", "gen", "join", TUPLE),
        exchange("rules", "rules", "join", TUPLE, gate=1, how="broadcast"),
        exchange("next", "join", "sink", TUPLE),
    )
    made = make(tmp_path / "chk", text)
    assert {e["name"]: e["records"] > 0 for e in made.description["exchanges"]} == {
        "keyed": False,
        "rules": False,
        "next": True,
    }


def tree(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def test_the_same_arguments_give_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    options: dict[str, Any] = {"skew": True, "timestamps": True, "buffer": "2kB"}
    first, again, other = (
        tree(make(tmp_path / name, single(ROW), seed=seed, **options).path)
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again
    assert set(first) & set(other) == {"_metadata"}
    assert first["_metadata"] != other["_metadata"]


ALWAYS: dict[str, tuple[str, dict[str, Any], str]] = {
    "several exchanges": (
        spec_of(
            exchange("rules", "rules", "never", TUPLE, how="broadcast"),
            exchange("words", "gen", "join", TUPLE),
            exchange("rows", "rows", "join", ROWDATA, gate=1),
            exchange("all", "join", "count", "LONG", how="global"),
        ),
        {"parallelism": "6", "upstream": 4, "skew": True, "timestamps": True, "buffer": "700", "seed": 2**40 + 3},
        "f8bc758d084599b4b1ed636aff50e478",
    ),
    "many batches": (
        single(POJO),
        {"parallelism": "2", "size": "12MB", "buffer": "50kB"},
        "dd3d374ddd98808a0c34f7bd060efd73",
    ),
    "one handle a channel": (
        single(ROW),
        {"parallelism": "24", "keys": 400, "version": 5},
        "21457025df5c3ebc47fc1d7e525bc5d0",
    ),
    "inline": (single(TUPLE, "rebalance"), {"parallelism": "5", "inline": True}, "f4c7e8c73d392add5d8dd404748c8de0"),
}


@pytest.mark.parametrize("case", ALWAYS)
def test_a_seed_gives_the_bytes_that_it_gave_in_earlier_versions(tmp_path: Path, case: str) -> None:
    text, options, expected = ALWAYS[case]
    digest = hashlib.sha256()
    for name, data in sorted(tree(make(tmp_path / "chk", text, **options).path).items()):
        digest.update(f"{name} {len(data)} ".encode() + data)
    assert digest.hexdigest()[:32] == expected


def test_records_span_buffers_and_straddle_from_input_into_output_state(tmp_path: Path) -> None:
    made = make(tmp_path / "chk", single(TUPLE), size="2MB", record_bytes="5000-9000", buffer="4KiB")
    tables = dict(made.tables())
    assert len(tables) == 9
    states = [set(table["from_state"].to_pylist()) for table in tables.values()]
    assert sum({"input", "output", "input+output"} <= state for state in states) >= 7
    lengths = made.chunk_lengths()
    assert max(lengths) == 4096
    assert min(lengths) == 0
    assert Counter(lengths)[4096] < len(lengths)
    values = np.concatenate(
        [table.filter(pa.compute.equal(table["kind"], "record"))["length"] for table in tables.values()]
    )
    assert 5000 <= values.min() - 1 <= values.max() - 1 <= 9000


def test_subtasks_share_files_and_their_chunks_lie_between_each_others(tmp_path: Path) -> None:
    made = make(tmp_path / "chk", single(TUPLE), "4", size="1MB", buffer="1kB", subtasks_per_file=5)
    chunks = list(made.chunks())
    sharing = []
    for file in {owned[0] for owned, _, _ in chunks}:
        owners = [owned[1:] for owned, _, _ in chunks if owned[0] == file]
        assert {label for label, _, _ in owners} == {"gen", "slow"}
        sharing.append(len({(label, at.subtask) for label, _, at in owners}))
        runs = sum(before != after for before, after in pairwise(owners)) + 1
        assert runs > 2 * len(set(owners))
    assert sorted(sharing) == [3, 5]


def test_no_record_is_behind_a_watermark_and_markers_name_their_source(tmp_path: Path) -> None:
    made = make(tmp_path / "chk", single(TUPLE), size="1MB", timestamps=True, record_bytes="60-80")
    kinds: Counter[str] = Counter()
    for channel, table in made.tables():
        watermark = -1
        for row in table.select(["kind", "ts", "raw"]).to_pylist():
            kinds[row["kind"]] += 1
            if row["kind"] == "latency_marker":
                source, subtask = row["raw"][9:25], row["raw"][25:]
                assert (source.hex(), int.from_bytes(subtask, "big")) == (operator_id_of_uid("gen"), channel.up)
                continue
            assert row["ts"] > watermark
            watermark = row["ts"] if row["kind"] == "watermark" else watermark
    assert kinds["watermark"] > 100
    assert 0 < kinds["latency_marker"] < kinds["watermark"] / 4


def test_without_watermarks_and_timestamps_there_are_only_bare_records(tmp_path: Path) -> None:
    made = make(tmp_path / "chk", single(TUPLE), watermarks=False)
    totals = made.description["totals"]
    assert totals["records"] == totals["elements"] > 0
    assert all(table["ts"].null_count == table.num_rows for _, table in made.tables())


def test_skew_gives_few_subtasks_most_of_the_records(tmp_path: Path) -> None:
    def largest_share(made: Made) -> float:
        (described,) = made.description["exchanges"]
        loads: Counter[int] = Counter()
        for channel in described["channels"]:
            loads[channel["down"]] += channel["bytes"]
        return max(loads.values()) / sum(loads.values())

    plain = make(tmp_path / "plain", single(TUPLE), "8", "500kB")
    skewed = make(tmp_path / "skewed", single(TUPLE), "8", "500kB", skew=True)
    assert largest_share(skewed) > 0.25 > largest_share(plain)


def test_an_operator_without_a_key_has_no_channel_and_one_record_is_enough_for_another(tmp_path: Path) -> None:
    made = make(tmp_path / "chk", single(TUPLE), "16", "50kB", keys=2, record_bytes="8kB-9kB")
    assert len({channel.down for channel in made.plan.channels}) <= 2
    assert 50_000 - 10_000 < made.description["totals"]["bytes"] < 50_000 + 40_000


def test_no_bytes_make_a_checkpoint_without_channel_state(tmp_path: Path) -> None:
    made = make(tmp_path / "chk", single(TUPLE), size="0")
    assert len(made.plan.channels) == 0
    assert [file.name for file in made.path.iterdir()] == ["_metadata"]


EVERY_SCALAR = (
    "TUPLE<LONG, BOOLEAN, BYTE, SHORT, INT, FLOAT, DOUBLE, CHAR, STRING, BYTES, BIGINT_BIG, DECIMAL_BIG, INSTANT, "
    "DATE, TIME, TIMESTAMP, LOCALDATE, LOCALTIME, LOCALDATETIME, ARRAY<NULLABLE<LONG>>, ARRAY<STRING>, "
    "NULLABLE<DOUBLE>, POJO<b INT, a ROW<x STRING, y TUPLE<INT>>>, LONG>"
)
EVERY_COLUMN = (
    "ROWDATA<id STRING, a BOOLEAN, b TINYINT, c SMALLINT, d INT, e BIGINT, f FLOAT, g DOUBLE, h CHAR(5), i VARCHAR(9), "
    "j BINARY(3), k VARBINARY(12), l DECIMAL(10, 2), m DECIMAL(30, 4), n DATE, o TIME(3), p TIMESTAMP(3), "
    "q TIMESTAMP(9), r TIMESTAMP_LTZ(6), s ARRAY<INT>, t MAP<STRING, BIGINT>, u ROW<x INT, y STRING>, "
    "v STRING, w BYTES>"
)
OTHER_KEYS = {
    "text": ("TUPLE<STRING, INT, BYTES>", "[f0]"),
    "two fields": ("TUPLE<LONG, STRING, LONG, STRING>", "[f0, f1]"),
    "nested": ("TUPLE<TUPLE<LONG, STRING>, INT, LONG>", "[f0.f1]"),
    "tuple": ("TUPLE<TUPLE<LONG, DOUBLE>, INT, LONG>", "[f0]"),
    "time": ("ROW<at INSTANT, n LONG>", "[at]"),
    "flag": ("POJO<on BOOLEAN, n LONG, text STRING>", "['on']"),
    "sql": ("ROWDATA<d DECIMAL(20, 3), t TIMESTAMP(6), n BIGINT, s STRING>", "[d, t]"),
    "value": ("LONG", "[f0]"),
}


@pytest.mark.parametrize("record", [EVERY_SCALAR, EVERY_COLUMN, "NULLABLE<LONG>", "ARRAY<STRING>", "STRING", "OPAQUE"])
def test_every_type_decodes_after_it_was_made(tmp_path: Path, record: str) -> None:
    made = make(tmp_path / "chk", single(record, "rebalance"), "2", size="200kB", keys=10)
    assert sum(table.num_rows for _, table in made.tables()) == made.description["totals"]["elements"]


@pytest.mark.parametrize("kind", OTHER_KEYS)
def test_records_wait_for_the_owner_of_their_key_whatever_it_is_made_of(tmp_path: Path, kind: str) -> None:
    record, key = OTHER_KEYS[kind]
    text = single(record, "rebalance").replace("rebalance", f"hash\n    key: {key}")
    made = make(tmp_path / "chk", text, "5", "60kB", keys=40, max_parallelism=100)
    assert made.plan.channels
    for channel, table in made.tables():
        groups = table["key_group"].drop_null().to_pylist()
        assert groups
        assert {owner(group, 5, 100) for group in groups} == {channel.down}


def test_keys_are_as_many_as_asked_for(tmp_path: Path) -> None:
    made = make(tmp_path / "chk", single(TUPLE), size="500kB", keys=40)
    values = [
        value
        for _, table in made.tables()
        for value in table["main"].combine_chunks().field("f0").drop_null().to_pylist()
    ]
    assert set(values) == set(range(40))


def test_ids_name_operators_as_they_do_in_a_spec(tmp_path: Path) -> None:
    identifier = "59fa767824610e31f4a11d6125e09bf4"
    made = make(tmp_path / "chk", spec_of(exchange("main", "gen", identifier, TUPLE)))
    described = {o["id"]: (o["uid"], o["name"]) for o in made.description["operators"]}
    assert described == {"6bf01baa9d2ca23a3ef7ce311722523d": ("gen", "gen"), identifier: (None, None)}
    assert made.description["totals"]["records"] > 0
