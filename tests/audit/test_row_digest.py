"""The digest of rows: equal for equal values, however they lie in memory, and the same by both implementations."""

from __future__ import annotations

import datetime
import decimal
import math
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdr_core.audit.row_digest import RowDigest
from cdr_core.verify import row_digests

LISTS = pa.list_(pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]))
FIELDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "flag": (pa.bool_(), [True, False, None]),
    "byte": (pa.int8(), [-128, 0, 127, None]),
    "short": (pa.int16(), [-(2**15), 5, None]),
    "int": (pa.int32(), [-1, 0, 2**31 - 1]),
    "long": (pa.int64(), [-(2**63), 0, 2**63 - 1, None]),
    "float": (pa.float32(), [0.5, -0.0, math.inf, math.nan, None]),
    "double": (pa.float64(), [1e300, 0.0, -math.inf, math.nan, None]),
    "text": (pa.string(), ["", "a", "12345678", "123456789", "sixteen letters!", "seventeen letters", "é" * 40, None]),
    "bytes": (pa.binary(), [b"", b"\0", b"\0\0", bytes(range(100)), None]),
    "fixed": (pa.binary(16), [bytes(16), bytes(range(16)), None]),
    "decimal": (pa.decimal128(20, 4), [decimal.Decimal("-12.5"), decimal.Decimal("9999999999999999.9999"), None]),
    "date": (pa.date32(), [datetime.date(1969, 12, 31), None]),
    "time": (pa.time64("us"), [datetime.time(1, 2, 3, 4), None]),
    "instant": (pa.timestamp("us", tz="UTC"), [datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), None]),
    "struct": (pa.struct([("x", pa.int32()), ("y", pa.string())]), [{"x": 1, "y": None}, {"x": None, "y": "z"}, None]),
    "lists": (LISTS, [[], [{"a": 1, "b": ["p", None]}, None], None, [{"a": 2, "b": None}]]),
    "map": (pa.map_(pa.string(), pa.int32()), [[("k", 1), ("l", None)], [], None]),
    "nothing": (pa.null(), [None]),
}


def table(rows: int = 200) -> pa.Table:
    chance = random.Random(7)
    columns = {name: pa.array(chance.choices(of, k=rows), kind) for name, (kind, of) in FIELDS.items()}
    return pa.table(columns)


def digest(found: pa.Table, rows: int | None = None) -> str:
    """By both implementations, which agree."""
    ours, second = RowDigest(), row_digests.RowDigest()
    for batch in found.to_batches(max_chunksize=rows):
        ours.add(batch)
        second.add(batch)
    assert ours.hex == second.hex()
    return ours.hex


def test_both_implementations_agree_on_every_type() -> None:
    for name in FIELDS:
        digest(table().select([name]))


@pytest.mark.parametrize("rows", [1, 3, 64, 199])
def test_how_rows_are_cut_into_batches_does_not_matter(rows: int) -> None:
    assert digest(table(), rows) == digest(table())


def test_what_comes_back_from_a_file_has_the_digest(tmp_path: Any) -> None:
    pq.write_table(table(), tmp_path / "t.parquet", row_group_size=31)
    assert digest(pq.read_table(tmp_path / "t.parquet")) == digest(table())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("byte", pa.int32()),
        ("int", pa.int64()),
        ("float", pa.float64()),
        ("text", pa.large_string()),
        ("text", pa.dictionary(pa.int32(), pa.string())),
        ("fixed", pa.binary()),
        ("instant", pa.timestamp("ns", tz="UTC")),
    ],
)
def test_the_width_of_a_type_does_not_matter(name: str, kind: pa.DataType) -> None:
    one = table().select([name])
    assert digest(one.cast(pa.schema([(name, kind)]))) == digest(one)


@pytest.mark.parametrize("name", [name for name in FIELDS if name != "nothing"])
def test_every_other_value_has_another_digest(name: str) -> None:
    kind, of = FIELDS[name]
    found = {digest(pa.table({name: pa.array([value], kind)})) for value in of}
    assert len(found) == len(of)


def test_every_nan_is_the_same_and_a_zero_has_a_sign() -> None:
    bits = np.array([0x7FF8000000000000, 0x7FF0000000000001, -1], np.int64)
    found = {digest(pa.table({"f": pa.array(bits[i : i + 1].view(np.float64))})) for i in range(3)}
    assert len(found) == 1
    assert digest(pa.table({"f": [0.0]})) != digest(pa.table({"f": [-0.0]}))


def test_order_number_and_columns_of_rows_count() -> None:
    whole = table()
    turned = whole.take(list(range(len(whole)))[::-1])
    swapped = whole.select([*whole.column_names[1:], whole.column_names[0]])
    found = {digest(each) for each in (whole, turned, swapped, whole.slice(1), whole.slice(0, 199), whole.slice(0, 0))}
    assert len(found) == 6


def test_what_lies_below_a_null_does_not_count() -> None:
    mask = pa.array([False, True, False])
    hidden = [pa.StructArray.from_arrays([pa.array([1, x, 3])], names=["x"], mask=mask) for x in (2, 9)]
    assert len({digest(pa.table({"s": each})) for each in hidden}) == 1
