"""In-flight data as DataFrames and SQL views, on a classic session and on Connect: the same rows, the same pushdown.

That a filter or a column reached the source is shown by damage: what is not asked for is broken on purpose, so a query
that touched it would fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdr_core.channels.channel_source import open_checkpoint
from cdr_core.flink.metadata import Side
from cdr_core.spark.server import ServerHandle
from cdr_core.spark.session import open_session
from cdr_core.spark.sources import register
from tests.flink_formats.generate.made import exchange, make, spec_of
from tests.spark.conftest import HOME
from tests.spark.every_type import EVERY_TYPE
from tests.support import written
from tests.support.bucket import Bucket
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

TWO = spec_of(
    exchange("left", "gen", "slow", "TUPLE<LONG, STRING>"), exchange("right", "other", "late", "TUPLE<LONG, STRING>")
)


@pytest.fixture(scope="module", params=[pytest.param("classic", marks=pytest.mark.s3), "connect"])
def spark(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One after the other: a process can hold either kind. Workers have the environment that the JVM started with."""
    if request.param == "classic":
        with pytest.MonkeyPatch.context() as patch:
            for name, value in request.getfixturevalue("_s3").environment.items():
                patch.setenv(name, value)
            with open_session("local[2]", home=HOME) as session:
                register(session)
                yield session
        return
    server: ServerHandle = request.getfixturevalue("server")
    with open_session("connect", home=HOME, handle=server) as session:
        register(session)
        yield session


def elements_of(spark: Any, checkpoint: FixtureCheckpoint) -> Any:
    reader = spark.read.format("flink_channel_state").option("spec", str(checkpoint.spec))
    return reader.load(str(checkpoint.path))


def test_every_element_is_a_row_and_filters_choose_channels(spark: Any, fixture_checkpoint: FixtureCheckpoints) -> None:
    checkpoint = fixture_checkpoint("g_p7_thr0", 2)
    frame = elements_of(spark, checkpoint)
    elements = checkpoint.oracle.elements
    assert frame.count() == len(elements)
    frame.createOrReplaceTempView("in_flight")
    query = (
        "select count(*) n, sum(bytes.f2) s from in_flight where exchange = 'bytes' and down = 3 and kind = 'record'"
    )
    row = spark.sql(query).first()
    wanted = [e for e in elements if e.is_record and e.channel.gate == 1 and e.channel.down == 3]
    assert (row.n, row.s) == (len(wanted), sum(e.seq or 0 for e in wanted))


FILTERS: dict[str, Callable[[Any], bool]] = {
    "exchange = 'bytes'": lambda e: e.channel.gate == 1,
    "gate = 0": lambda e: e.channel.gate == 0,
    "up in (1, 5)": lambda e: e.channel.up in (1, 5),
    "down >= 5 and down < 7 and up <= 2": lambda e: 5 <= e.channel.down < 7 and e.channel.up <= 2,
    "kind = 'watermark' and up > 3": lambda e: e.kind == "watermark" and e.channel.up > 3,
    "kind in ('watermark', 'record') and gate = 7": lambda e: False,
    "down = 3 or kind = 'watermark'": lambda e: e.channel.down == 3 or e.kind == "watermark",
}


@pytest.mark.parametrize("condition", FILTERS)
def test_a_filter_keeps_what_it_says(spark: Any, fixture_checkpoint: FixtureCheckpoints, condition: str) -> None:
    checkpoint = fixture_checkpoint("g_p7_thr0", 2)
    wanted = sum(1 for e in checkpoint.oracle.elements if FILTERS[condition](e))
    assert elements_of(spark, checkpoint).where(condition).count() == wanted


def test_a_view_made_by_sql_reads_the_checkpoint(spark: Any, fixture_checkpoint: FixtureCheckpoints) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    spark.sql(f"""create or replace temporary view elements using flink_channel_state
                  options (path '{checkpoint.path}', spec '{checkpoint.spec}')""")
    spark.sql(f"""create or replace temporary view channels using flink_checkpoint
                  options (path '{checkpoint.path}')""")
    counted = {row.kind: row.n for row in spark.sql("select kind, count(*) n from elements group by kind").collect()}
    kinds = [e.kind for e in checkpoint.oracle.elements]
    assert counted == {kind: kinds.count(kind) for kind in set(kinds)}
    row = spark.sql("select sum(bytes) b from channels where side = 'input'").first()
    assert row.b == sum(channel.input_bytes for channel in checkpoint.oracle.channels.values())


def test_a_schema_in_sql_prunes_columns(spark: Any, fixture_checkpoint: FixtureCheckpoints) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    spark.sql(f"""create or replace temporary view narrow (down int, length int) using flink_channel_state
                  options (path '{checkpoint.path}', spec '{checkpoint.spec}')""")
    assert spark.table("narrow").columns == ["down", "length"]
    assert spark.sql("select count(*) n from narrow where down = 1").first().n == sum(
        1 for e in checkpoint.oracle.elements if e.channel.down == 1
    )


def test_a_read_schema_prunes_columns(spark: Any, fixture_checkpoint: FixtureCheckpoints) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    reader = spark.read.format("flink_channel_state").option("spec", checkpoint.spec.read_text())
    frame = reader.schema("up int, kind string").load(str(checkpoint.path))
    assert frame.columns == ["up", "kind"]
    watermarks = frame.where("kind = 'watermark'").count()
    assert watermarks == sum(1 for e in checkpoint.oracle.elements if e.kind == "watermark")


@pytest.fixture(scope="module")
def half_broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two exchanges; on every channel but gen 0 → slow 0 the first record has an impossible length."""
    path = make(tmp_path_factory.mktemp("made") / "chk-1", TWO, "2", "200kB", subtasks_per_file=1).path
    checkpoint = open_checkpoint(str(path))
    kept = [("slow", Side.INPUT, (0, 0, 0)), ("gen", Side.OUTPUT, (0, 0, 0))]
    for operator in checkpoint.metadata.operators:
        for side in Side:
            for at, piece in checkpoint.channels(operator, side).items():
                if (operator.label, side, tuple(at)) in kept:
                    continue
                location: Any = checkpoint.resolve(piece.delegate)
                data = bytearray(Path(location.uri).read_bytes())
                for offset in piece.offsets:
                    data[offset + 4 : offset + 8] = b"\xff\xff\xff\xff"
                Path(location.uri).write_bytes(data)
    return path


def test_channels_that_filters_exclude_are_never_read(spark: Any, half_broken: Path) -> None:
    frame = spark.read.format("flink_channel_state").option("spec", TWO).load(str(half_broken))
    assert frame.where("exchange = 'left' and up = 0 and down = 0").count() > 0
    assert frame.where("gate = 0 and exchange = 'nope'").count() == 0
    for wider in ("exchange = 'left' and up = 0", "exchange = 'left' and down = 0", "up = 0 and down = 0"):
        with pytest.raises(Exception, match="impossible record length"):
            frame.where(wider).count()


@pytest.mark.parametrize("column", ["exchange", "gate", "up", "down", "kind"])
def test_the_source_takes_a_filter_over_and_spark_does_not_filter_again(
    spark: Any, half_broken: Path, capsys: pytest.CaptureFixture[str], column: str
) -> None:
    value = {"exchange": "'left'", "kind": "'record'"}.get(column, "0")
    frame = spark.read.format("flink_channel_state").option("spec", TWO).load(str(half_broken))
    frame.where(f"{column} = {value}").explain()
    assert "Filter " not in capsys.readouterr().out, "an operator of Spark's own filters"
    frame.where("length > 3").explain()
    assert "Filter " in capsys.readouterr().out


def test_values_that_no_column_shows_are_not_decoded(spark: Any, fixture_checkpoint: FixtureCheckpoints) -> None:
    """The spec claims a type that the records do not have: whoever decodes one finds out."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    wrong = checkpoint.spec.read_text().replace("TUPLE<LONG, INT, LONG, STRING>", "TUPLE<LONG, INT>")

    def reader() -> Any:
        return spark.read.format("flink_channel_state").option("spec", wrong)

    pruned = reader().schema("down int, pos long").load(str(checkpoint.path))
    assert pruned.count() == len(checkpoint.oracle.elements)
    with pytest.raises(Exception, match="exchange main"):
        reader().load(str(checkpoint.path)).selectExpr("sum(main.f0)").collect()


@pytest.mark.parametrize("spark", ["classic"], indirect=True)
def test_a_checkpoint_on_s3_gives_the_rows_of_its_local_copy(
    spark: Any, bucket: Bucket, fixture_checkpoint: FixtureCheckpoints
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    uri = bucket.upload(checkpoint.path)
    reader = spark.read.format("flink_channel_state").option("spec", str(checkpoint.spec))
    columns = ["up", "down", "pos", "kind", "raw"]
    there = reader.load(uri).select(*columns).orderBy(*columns[:3]).collect()
    assert there == elements_of(spark, checkpoint).select(*columns).orderBy(*columns[:3]).collect()
    assert len(there) == len(checkpoint.oracle.elements)
    channels = spark.read.format("flink_checkpoint").load(uri).selectExpr("sum(bytes) b").first()
    assert channels.b == sum(c.input_bytes + c.output_bytes for c in checkpoint.oracle.channels.values())


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


def test_a_read_schema_with_an_unknown_column_is_one_sentence_that_lists_the_columns(
    spark: Any, fixture_checkpoint: FixtureCheckpoints
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    elements = spark.read.format("flink_channel_state").option("spec", str(checkpoint.spec))
    channels = spark.read.format("flink_checkpoint")
    for reader, columns in ((elements, "exchange, gate, up, down, pos, kind"), (channels, "operator, uid, side")):
        with pytest.raises(Exception, match=f"a column 'ups', which .* its columns are {columns}"):
            reader.schema("channel int, ups int" if reader is channels else "up int, ups int").load(
                str(checkpoint.path)
            ).collect()
    few = channels.schema("bytes long, side string").load(str(checkpoint.path))
    assert few.where("side = 'input'").selectExpr("sum(bytes) b").first().b == sum(
        channel.input_bytes for channel in checkpoint.oracle.channels.values()
    )


def test_a_string_that_is_no_text_fails_unless_it_is_to_be_replaced(spark: Any, tmp_path: Path) -> None:
    lone = written.frame(b"\x01" + bytes(8) + bytes([2, 0x80, 0xB0, 0x03]))  # one character, U+D800
    path = written.write_checkpoint(tmp_path / "chk-1", 1, 1, {(0, 0): written.record(1, "x") + lone})
    reader = spark.read.format("flink_channel_state").option("spec", written.SPEC.format(partitioner="rebalance"))
    with pytest.raises(Exception, match=r'option\("text", "replace"\)'):
        reader.load(path).collect()
    shown = reader.option("text", "replace").load(path).orderBy("pos").selectExpr("main.f1 text").collect()
    assert [row.text for row in shown] == ["x", "\ufffd"]
    with pytest.raises(Exception, match="option 'text' is 'drop'; write fail or replace"):
        reader.option("text", "drop").load(path).collect()


def test_a_column_of_every_sql_type_reaches_spark(spark: Any, tmp_path: Path) -> None:
    made = make(tmp_path / "chk-1", EVERY_TYPE, "1", "20kB", record_bytes="400-600")
    frame = spark.read.format("flink_channel_state").option("spec", EVERY_TYPE).load(str(made.path))
    kinds = dict(frame.select("main.*").dtypes)
    assert (kinds["t6"], kinds["l0"], kinds["l6"]) == ("timestamp_ntz", "timestamp", "timestamp")
    rows = frame.orderBy("pos").selectExpr("unix_micros(main.l6) l6", "cast(main.t6 as string) t6", "main").collect()
    mine = made.channel(0)["main"].combine_chunks()
    assert [row.l6 for row in rows] == mine.field("l6").cast("int64").to_pylist()
    assert [row.main and row.main.t6 for row in rows] == mine.field("t6").to_pylist()
    assert len(rows) > 20
