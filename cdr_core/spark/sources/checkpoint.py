"""``spark.read.format("flink_checkpoint").load(CHECKPOINT)``: a row per channel with state; no payload is read."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from cdr_core.spark.sources.options import require_columns, required

SCHEMA = ", ".join(
    (
        "operator string, uid string, side string, subtask int",
        "gate int, partition int, channel int",  # input state has a gate, output state a partition
        "buffers long, bytes long",
    )
)

COLUMNS = tuple(column.split()[0] for column in SCHEMA.split(", "))


class CheckpointSource(DataSource):
    """Option: ``path`` (or ``load(path)``)."""

    @classmethod
    def name(cls) -> str:
        return "flink_checkpoint"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        require_columns(schema.names, COLUMNS)
        wanted = tuple(COLUMNS.index(name) for name in schema.names)
        return CheckpointReader(required(self.options, "path", "CHECKPOINT"), wanted)


class CheckpointReader(DataSourceReader):
    """Reads all rows from `_metadata` alone, so one partition is enough. ``wanted``: the columns of the read schema."""

    def __init__(self, path: str, wanted: tuple[int, ...]) -> None:
        self._path, self._wished = path, wanted

    def read(self, partition: InputPartition) -> Iterator[tuple[object, ...]]:
        from cdr_core.channels.channel_source import open_checkpoint
        from cdr_core.flink.metadata import Side
        from cdr_core.planning.handle_sizes import payload_sizes

        checkpoint = open_checkpoint(self._path)
        for operator in checkpoint.metadata.operators:
            for side in (Side.INPUT, Side.OUTPUT):
                columns = checkpoint.columns(operator, side)
                numbers = (columns.subtask, columns.a, columns.b, columns.counts, payload_sizes(checkpoint, columns))
                for subtask, a, b, buffers, size in zip(*(each.tolist() for each in numbers), strict=True):
                    ends = (a, None) if side is Side.INPUT else (None, a)
                    place = (subtask, *ends, b, buffers, None if size < 0 else size)
                    row = (operator.operator_id, operator.uid, str(side), *place)
                    yield tuple(row[number] for number in self._wished)
