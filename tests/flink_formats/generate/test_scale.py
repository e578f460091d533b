"""Large checkpoints are streamed, and what was made goes through the whole recovery."""

from __future__ import annotations

import tracemalloc
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from cdr_core.cli.generate import _exchanges
from cdr_core.flink.keys import owner
from cdr_core.planning.job_spec import parse_spec
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.synthetic import Shape, generate
from tests.flink_formats.generate.made import exchange, make, spec_of
from tests.support import inline, output

SPEC = spec_of(exchange("main", "gen", "slow", "TUPLE<LONG, INT, LONG, BYTES>"))


class Counting:
    """Takes bytes and keeps their number."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: bytes, /) -> None:
        self.size += len(data)


def test_memory_is_a_fraction_of_the_checkpoint() -> None:
    streams: list[Counting] = []

    def create(_: str) -> Counting:
        streams.append(Counting())
        return streams[-1]

    size = 150_000_000
    shape = Shape(_exchanges(parse_spec(SPEC)), {"gen": 4, "slow": 4}, size, 7, keys=50, record_bytes=(900, 1100))
    generate(replace(shape, bytes=1000), lambda _: Counting())  # loads the kernels, which take memory once
    tracemalloc.start()
    try:
        made = generate(shape, create)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made.exchanges[0].bytes == pytest.approx(size, rel=0.01)
    assert sum(stream.size for stream in streams) > made.exchanges[0].bytes
    assert peak < 32_000_000


def test_a_generated_checkpoint_goes_through_the_whole_recovery_at_another_parallelism(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDR_TABLE_RAW", "true")
    text = spec_of(
        exchange("tuples", "gen", "join", "TUPLE<LONG, INT, LONG, STRING>"),
        exchange("rows", "rows", "join", "ROWDATA<id BIGINT, n BIGINT, text STRING>", gate=1),
        exchange("spread", "join", "map", "POJO<seq LONG, id STRING>", how="rebalance"),
    )
    made = make(tmp_path / "chk", text, "4", "150kB", upstream=3, timestamps=True, buffer="1kB")
    expected = {}
    for channel, table in made.tables():
        name = made.plan.exchanges[channel.exchange].name
        for row in table.to_pylist():
            if row["kind"] == "record":
                expected[name, row["up"], row["down"], row["pos"]] = row
    request = RecoveryRequest(str(made.path), text, "join=3,map=2", f"parquet:{tmp_path}/out")
    repository, recovery, settings = inline.start(request)
    assert inline.run_all(repository, recovery, settings)["verdict"] == "balanced"
    last: dict[tuple[object, ...], int] = defaultdict(lambda: -1)
    for row in output.rows(tmp_path / "out"):
        name = row["exchange"]
        source = expected.pop((name, row["up"], row["down"], row["pos"]))
        assert (row[name], row["raw"], row["ts"]) == (source[name], source["raw"], source["ts"])
        wanted = row["down"] % 2 if name == "spread" else owner(source["key_group"], 3, 128)
        assert row["new_down"] == wanted
        order = (name, row["up"], row["down"], row["new_down"])
        assert last[order] < row["pos"]
        last[order] = row["pos"]
    assert not expected
