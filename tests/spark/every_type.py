"""A job spec with a column of every SQL type."""

from __future__ import annotations

from tests.flink_formats.generate.made import exchange, spec_of

SQL_TYPES = {
    "id": "BIGINT",
    "bo": "BOOLEAN",
    "ti": "TINYINT",
    "sm": "SMALLINT",
    "i": "INT",
    "fl": "FLOAT",
    "do": "DOUBLE",
    "ch": "CHAR(3)",
    "vc": "VARCHAR(9)",
    "st": "STRING",
    "bi": "BINARY(3)",
    "vb": "VARBINARY(9)",
    "by": "BYTES",
    "de": "DECIMAL(10, 2)",
    "dl": "DECIMAL(38, 10)",
    "da": "DATE",
    "tm": "TIME",
    "t0": "TIMESTAMP(0)",
    "t3": "TIMESTAMP(3)",
    "t6": "TIMESTAMP(6)",
    "t9": "TIMESTAMP(9)",
    "l0": "TIMESTAMP_LTZ(0)",
    "l3": "TIMESTAMP_LTZ(3)",
    "l6": "TIMESTAMP_LTZ(6)",
    "l9": "TIMESTAMP_LTZ(9)",
    "ym": "INTERVAL YEAR TO MONTH",
    "ds": "INTERVAL DAY TO SECOND",
    "ar": "ARRAY<TIMESTAMP_LTZ(3)>",
    "mp": "MAP<STRING, TIMESTAMP_LTZ(6)>",
    "ms": "MULTISET<STRING>",
    "ro": "ROW<x TIMESTAMP_LTZ(3), y ARRAY<INT>>",
    "rw": "RAW",
    "va": "VARIANT",
}


EVERY_TYPE = spec_of(
    exchange("main", "gen", "slow", f"ROWDATA<{', '.join(f'{name} {kind}' for name, kind in SQL_TYPES.items())}>")
)
