"""The page about the job spec: what it shows can be used as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdr_core.flink.types import parse_type
from cdr_core.planning.job_spec import COLUMNS, Partitioner, parse_spec

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "job-spec.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_specs_on_the_page_parse() -> None:
    whole = [text for text in blocks("yaml") if "exchanges:" in text]
    assert [len(parse_spec(text).exchanges) for text in whole] == [1, 2]


def test_the_owner_function_on_the_page_gives_owners() -> None:
    (text,) = blocks("python")
    names: dict[str, Any] = {}
    exec(text, names)
    values = pa.StructArray.from_arrays([pa.array([4, 7, 9]), pa.array(["a", "b", "c"])], names=["f0", "f1"])
    assert names["owner"](values, 4, 128).tolist() == [0, 3, 1]


def test_the_page_names_every_partitioner_and_every_reserved_column() -> None:
    assert all(f"`{partitioner}`" in PAGE for partitioner in Partitioner)
    assert all(re.search(rf"\b{column}\b", PAGE) for column in COLUMNS)


def test_the_types_on_the_page_are_types() -> None:
    table = PAGE[PAGE.index("## Types") :]
    first_cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    types = [name for cell in first_cells for name in re.findall(r"`(.*?)`", cell)]
    for text in types:
        for one in [text] if "<" in text else text.split():
            parse_type(one)
    assert len(types) > 8
