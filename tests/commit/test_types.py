"""Every type a decoded record can have comes back out of every format as it went in."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from cdr_core.commit.publish_once import publish_once
from tests.commit.log import Log
from tests.commit.targets import Target, publication
from tests.support.sinks import sink_of

STRUCT = pa.struct([pa.field("n", pa.int16()), pa.field("s", pa.string())])
VALUES: dict[str, tuple[pa.DataType, Any]] = {
    "boolean": (pa.bool_(), True),
    "byte": (pa.int8(), -128),
    "short": (pa.int16(), -32768),
    "int": (pa.int32(), -(2**31)),
    "long": (pa.int64(), 2**63 - 1),
    "float": (pa.float32(), 1.5),
    "double": (pa.float64(), -0.1),
    "string": (pa.string(), "ÄÖÜ 🙂"),
    "bytes": (pa.binary(), b"\x00\xff"),
    "date": (pa.date32(), date(1969, 12, 31)),
    "decimal": (pa.decimal128(38, 18), Decimal("-12345678901234567890.123456789012345678")),
    "timestamp": (pa.timestamp("us"), datetime(1969, 12, 31, 23, 59, 59, 999999)),
    "instant": (pa.timestamp("us", tz="UTC"), datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)),
    "list": (pa.list_(pa.int8()), [1, None, -1]),
    "list of structs": (pa.list_(STRUCT), [{"n": 7, "s": None}, None]),
    "map": (pa.map_(pa.string(), pa.int32()), [("a", 1), ("b", None)]),
    "struct": (STRUCT, {"n": -7, "s": "x"}),
}
SCHEMA = pa.schema(
    [
        pa.field("raw", pa.binary(), nullable=False),
        pa.field("value", pa.struct([pa.field(name, type_) for name, (type_, _) in VALUES.items()])),
    ]
)
ROWS: list[dict[str, Any]] = [
    {"raw": b"1", "value": {name: value for name, (_, value) in VALUES.items()}},
    # pyiceberg's reader shows a list of structs that is null as an empty one, also when it wrote it itself.
    {"raw": b"2", "value": {**dict.fromkeys(VALUES), "list of structs": []}},
    {"raw": b"3", "value": None},
]


@pytest.mark.parametrize("empty_target", ["parquet", "iceberg", "paimon"], indirect=True)
def test_values_of_every_type_come_back_as_they_went_in(empty_target: Target) -> None:
    sink = sink_of(empty_target.name)
    sink.create(SCHEMA)
    sink.refuse_early(SCHEMA)
    with sink.writer("a", SCHEMA) as writer:
        writer.write(pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA))
    assert writer.prepared is not None
    publish_once(sink, "me", 1, publication("me", writer.prepared), Log())
    assert sorted(empty_target.rows(), key=lambda row: row["raw"]) == ROWS
