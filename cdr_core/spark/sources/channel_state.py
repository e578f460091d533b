"""``spark.read.format("flink_channel_state").option("spec", S).load(CHECKPOINT)``: every in-flight element as a row.

Partitions are splits of up to 16 MiB: small virtual channels together, a large one in stretches between records. (A
large one on S3 is one partition, since finding those would fetch all of it twice.) Filters on exchange, gate, up and
down choose channels before a byte is read; one on kind drops elements before they reach Spark. A read schema
(``.schema("exchange string, pos long")``) prunes columns: only those are handed over, and without a struct column
nothing is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from cdr_core.spark.sources.options import Test, chosen, passes, require_columns, required, split_filters

if TYPE_CHECKING:
    import pyarrow as pa

    from cdr_core.channels.channel_ranges import Stretch
    from cdr_core.planning.plan import Plan

PUSHED = frozenset({"exchange", "gate", "up", "down", "kind"})
PARTITION_BYTES = 16 * 1024 * 1024

TEXT = ("fail", "replace")
"""Treatment of a string that is no text; the first is the default."""


class ChannelStateSource(DataSource):
    """Options: ``path`` (or ``load(path)``), ``spec`` (a YAML file or its text), ``text``: the treatment of a string
    that is no text, ``fail`` (default) or ``replace`` (by U+FFFD).
    """

    @classmethod
    def name(cls) -> str:
        return "flink_channel_state"

    def schema(self) -> StructType:
        from cdr_core.channels.element_reader import element_schema

        return from_arrow_schema(element_schema(_plan(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        chosen(self.options, "text", TEXT)
        return ChannelStateReader(dict(self.options), to_arrow_schema(schema, timezone="UTC"))


class Split(InputPartition):
    """Stretches of virtual channels of the plan."""

    def __init__(self, stretches: tuple[Stretch, ...]) -> None:
        super().__init__(stretches)
        self.stretches = stretches


class ChannelStateReader(DataSourceReader):
    """Plans on the driver, decodes on executors; the plan is made again there from the same `_metadata`."""

    def __init__(self, options: dict[str, str], schema: pa.Schema) -> None:
        self._options, self._schema = options, schema
        self._tests: dict[str, list[Test]] = {}

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # Spark's name
        self._tests, left = split_filters(filters, PUSHED)
        return iter(left)

    def partitions(self) -> Sequence[InputPartition]:
        from cdr_core.channels.channel_ranges import stretches
        from cdr_core.channels.element_reader import element_schema

        plan = _plan(self._options)
        require_columns(self._schema.names, element_schema(plan).names)
        splits: list[list[Stretch]] = []
        room = 0
        for number, channel in enumerate(plan.channels):
            exchange = plan.exchanges[channel.exchange]
            place = {"exchange": exchange.name, "gate": exchange.gate, "up": channel.up, "down": channel.down}
            if not passes(self._tests, place):
                continue
            for stretch in stretches(plan, number, PARTITION_BYTES):
                size = channel.bytes if stretch.end is None else stretch.end
                if not splits or room < size - stretch.begin:
                    splits.append([])
                    room = PARTITION_BYTES
                splits[-1].append(stretch)
                room -= size - stretch.begin
        return [Split(tuple(each)) for each in splits] or [Split(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from cdr_core.channels.element_reader import element_batches

        assert isinstance(partition, Split)
        if not partition.stretches:
            return
        plan = _plan(self._options)
        wanted = frozenset(self._schema.names) | {"kind"}
        replace_text = chosen(self._options, "text", TEXT) == "replace"
        for part in partition.stretches:
            for batch in element_batches(plan, part.channel, wanted, replace_text=replace_text, stretch=part):
                kept = self._kept(batch)
                # The read schema may be nullable where ours is not, and Spark compares them exactly.
                yield kept.from_arrays([kept.column(name) for name in self._schema.names], schema=self._schema)

    def _kept(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        tests = self._tests.get("kind")
        if not tests:
            return batch
        import pyarrow as pa

        kinds = batch.column("kind").to_pylist()
        return batch.filter(pa.array([all(test(kind) for test in tests) for kind in kinds]))


def _plan(options: Any) -> Plan:
    from cdr_core.channels.channel_source import open_checkpoint
    from cdr_core.planning.job_spec import parse_spec, read_spec
    from cdr_core.planning.parallelism import SAME, parse_parallelism
    from cdr_core.planning.plan import make_plan

    checkpoint = open_checkpoint(required(options, "path", "CHECKPOINT"))
    spec = parse_spec(read_spec(required(options, "spec", "SPEC")))
    return make_plan(checkpoint, spec, parse_parallelism(SAME), PARTITION_BYTES)
