"""In-flight data as DataFrames, on a classic session; the same registration serves Connect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cdr_core import settings
from cdr_core.spark.session import open_session
from cdr_core.spark.sources import register
from tests.support.checkpoints import FixtureCheckpoints

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with open_session("local[2]", home=settings.load().home) as session:
        register(session)
        yield session


def test_every_element_is_a_row_and_filters_choose_channels(spark: Any, fixture_checkpoint: FixtureCheckpoints) -> None:
    checkpoint = fixture_checkpoint("g_p7_thr0", 2)
    frame = spark.read.format("flink_channel_state").option("spec", str(checkpoint.spec)).load(str(checkpoint.path))
    elements = checkpoint.oracle.elements
    assert frame.count() == len(elements)
    frame.createOrReplaceTempView("in_flight")
    query = (
        "select count(*) n, sum(bytes.f2) s from in_flight where exchange = 'bytes' and down = 3 and kind = 'record'"
    )
    row = spark.sql(query).first()
    wanted = [e for e in elements if e.is_record and e.channel.gate == 1 and e.channel.down == 3]
    assert (row.n, row.s) == (len(wanted), sum(e.seq or 0 for e in wanted))


def test_a_read_schema_prunes_columns(spark: Any, fixture_checkpoint: FixtureCheckpoints) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    reader = spark.read.format("flink_channel_state").option("spec", checkpoint.spec.read_text())
    frame = reader.schema("up int, kind string").load(str(checkpoint.path))
    assert frame.columns == ["up", "kind"]
    watermarks = frame.where("kind = 'watermark'").count()
    assert watermarks == sum(1 for e in checkpoint.oracle.elements if e.kind == "watermark")


def test_channels_are_rows_without_a_spec(spark: Any, fixture_checkpoint: FixtureCheckpoints) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    frame = spark.read.format("flink_checkpoint").load(str(checkpoint.path))
    row = frame.selectExpr("sum(bytes) b", "sum(buffers) n").first()
    channels = checkpoint.oracle.channels.values()
    assert row.b == sum(c.input_bytes + c.output_bytes for c in channels)
    assert row.n == sum(c.input_buffers + c.output_buffers for c in channels)


def test_a_missing_spec_is_one_sentence(spark: Any, fixture_checkpoint: FixtureCheckpoints) -> None:
    reader = spark.read.format("flink_channel_state")
    with pytest.raises(Exception, match="needs the option 'spec'"):
        reader.load(str(fixture_checkpoint("a_p3_thr0", 2).path)).count()
