"""What the data source does without Spark around it: how it cuts the work, and that every type gets through."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdr_core.spark.sources import ChannelStateSource, channel_state
from tests.flink_formats.generate.made import make
from tests.spark.every_type import EVERY_TYPE
from tests.support import written


def read(path: str, spec: str, tests: dict[str, Any] | None = None) -> list[pa.Table]:
    """The rows of each partition, as Spark would ask for them: what an executor gets, it gets pickled."""
    source = ChannelStateSource({"path": path, "spec": spec})
    reader = source.reader(source.schema())
    reader._tests = tests or {}  # type: ignore[attr-defined]
    parts = [pickle.loads(pickle.dumps(part)) for part in reader.partitions()]
    schema = reader._schema  # type: ignore[attr-defined]
    return [pa.Table.from_batches(reader.read(part), schema=schema) for part in parts]


def test_a_column_of_every_sql_type_is_handed_over_with_its_values(tmp_path: Path) -> None:
    made = make(tmp_path / "chk-1", EVERY_TYPE, "2", "60kB", record_bytes="400-600")
    there = pa.concat_tables(read(str(made.path), EVERY_TYPE))
    mine = pa.concat_tables([table for _, table in made.tables()])
    assert there["main"].to_pylist() == mine["main"].to_pylist()
    assert there["main"].type.field("l6").type == pa.timestamp("us", tz="UTC")
    assert there["main"].type.field("t6").type == pa.timestamp("us")
    assert there.num_rows > 20


SPEC = written.SPEC.format(partitioner="rebalance")
SMALL = 4096


@pytest.fixture
def small_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_state, "PARTITION_BYTES", SMALL)


RECORDS = b"".join(written.record(key, "x" * (key % 90)) + written.watermark(key) for key in range(1000))


@pytest.mark.usefixtures("small_partitions")
def test_a_large_channel_is_many_partitions_and_small_ones_are_one(tmp_path: Path) -> None:
    few = written.record(1)
    channels = {(0, 0): RECORDS, (1, 0): few, (0, 1): few, (1, 1): few}
    path = written.write_checkpoint(tmp_path / "chk-1", 2, 2, channels)
    parts = read(path, SPEC)
    assert len(RECORDS) // SMALL <= len(parts) <= 2 + 2 * len(RECORDS) // SMALL
    rows = pa.concat_tables(parts)
    large = rows.filter(pa.compute.and_(pa.compute.equal(rows["up"], 0), pa.compute.equal(rows["down"], 0)))
    assert large["pos"].to_pylist() == list(range(2000))
    states = large["from_state"].to_pylist()
    assert states == sorted(states, key=["input", "input+output", "output"].index)
    assert pa.compute.sum(rows["length"]).as_py() + 4 * rows.num_rows == len(RECORDS) + 3 * len(few)
    assert all(part.num_rows for part in parts)


@pytest.mark.usefixtures("small_partitions")
def test_damage_in_a_large_channel_is_found_by_who_reads_it_behind_what_is_good(tmp_path: Path) -> None:
    path = written.write_checkpoint(tmp_path / "chk-1", 1, 1, {(0, 0): RECORDS + b"\xff\xff\xff\xff" + RECORDS})
    source = ChannelStateSource({"path": path, "spec": SPEC})
    reader: Any = source.reader(source.schema())
    *sound, last = reader.partitions()
    assert len(sound) > 5
    read_there = [batch.num_rows for part in sound for batch in reader.read(part)]
    with pytest.raises(Exception, match=f"impossible record length of -1 .* offset {len(RECORDS)} of the channel"):
        read_there += [batch.num_rows for batch in reader.read(last)]
    assert 0 < sum(read_there) <= 2000
