"""Long lists in results: the same values and the same JSON as plain lists of dictionaries, in pieces."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cdr_core.inspection import rows
from cdr_core.inspection.rows import Rows, Table, json_parts

INPUT = Table(
    {
        "side": 'in"put',
        "subtask": np.array([0, 1, 2], np.int32),
        "bytes": np.array([7, -1, 0]),
        "ambiguous": np.array([True, False, True]),
        "exchange": np.array(["a", "ü", 'q"'], object),
    },
    3,
)
OUTPUT = Table({"partition": np.array([4, 5])}, 2)
EXPECTED = [
    {"side": 'in"put', "subtask": 0, "bytes": 7, "ambiguous": True, "exchange": "a"},
    {"side": 'in"put', "subtask": 1, "bytes": None, "ambiguous": False, "exchange": "ü"},
    {"side": 'in"put', "subtask": 2, "bytes": 0, "ambiguous": True, "exchange": 'q"'},
    {"partition": 4},
    {"partition": 5},
]


def test_rows_are_a_sequence_of_dictionaries() -> None:
    found = Rows(INPUT, OUTPUT)
    assert list(found) == EXPECTED
    assert (len(found), found[1], found[-1], found[1:4]) == (5, EXPECTED[1], EXPECTED[-1], EXPECTED[1:4])
    with pytest.raises(IndexError):
        found[5]


@pytest.mark.parametrize("block", [1, 2, 1 << 16])
def test_the_json_is_that_of_plain_lists(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(rows, "BLOCK", block)
    empty = Table({"partition": np.zeros(0, np.int64)}, 0)
    for tables in ((INPUT, OUTPUT), (empty, OUTPUT), (OUTPUT, empty, OUTPUT), (empty,), ()):
        shown = Rows(*tables)
        parts = list(json_parts({"path": "x", "operators": [{"channels": shown}, {"channels": shown, "n": 1}]}))
        plain = list(shown)
        expected = {"path": "x", "operators": [{"channels": plain}, {"channels": plain, "n": 1}]}
        assert "".join(parts) == json.dumps(expected)
        assert max(part.count("partition") for part in parts) <= block
