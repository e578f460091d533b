"""Long lists of a command's result: kept as columns, printed as JSON row by row.

A checkpoint may have a million channels. As dictionaries they would take gigabytes, so a list of them is a
:class:`Rows`, and :func:`json_parts` writes it in blocks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, overload
from uuid import uuid4

import numpy as np
import numpy.typing as npt

BLOCK: Final = 1 << 16
"""Rows that are printed at once."""

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Rows with the same fields: an array of numbers or truth values each, or one text for all rows.

    A negative number means unknown, and is ``None`` in a row.
    """

    fields: Mapping[str, npt.NDArray[Any] | str]
    length: int

    def numbers(self, name: str) -> Longs:
        """Return the column of a field that has numbers."""
        column = self.fields[name]
        assert not isinstance(column, str), name
        return column

    def rows(self, begin: int, end: int) -> Iterator[dict[str, Any]]:
        """Yield some of the rows as values."""
        columns = [_values(column, begin, end) for column in self.fields.values()]
        for row in zip(*columns, range(begin, end), strict=False):
            yield dict(zip(self.fields, row, strict=False))

    def json_rows(self, begin: int, end: int) -> Iterator[str]:
        """Return some of the rows as JSON."""
        columns = [_texts(column, begin, end) for column in self.fields.values()]
        form = ", ".join(f"{json.dumps(name)}: %s" for name in self.fields)
        return (f"{{{form}}}" % row[:-1] for row in zip(*columns, range(begin, end), strict=False))


class Rows(Sequence[dict[str, Any]]):
    """The rows of some tables, one table behind the other, as a list of dictionaries that are made when read."""

    def __init__(self, *tables: Table) -> None:
        self.tables = tables

    def __len__(self) -> int:
        return sum(table.length for table in self.tables)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for table in self.tables:
            yield from table.rows(0, table.length)

    @overload
    def __getitem__(self, place: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, place: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, place: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        number = range(len(self))[place]
        for table in self.tables:
            if number < table.length:
                return next(table.rows(number, number + 1))
            number -= table.length
        raise IndexError(place)

    def json_blocks(self) -> Iterator[str]:
        """Yield the list as JSON, in pieces."""
        start = "["
        for table in self.tables:
            for begin in range(0, table.length, BLOCK):
                yield start + ", ".join(table.json_rows(begin, min(begin + BLOCK, table.length)))
                start = ", "
        yield "]" if start == ", " else "[]"


def json_parts(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield a value as JSON, in pieces; :class:`Rows` in it are never in memory as a whole."""
    found: list[Rows] = []
    mark = uuid4().hex

    def note(item: object) -> str:
        if not isinstance(item, Rows):
            return str(item)
        found.append(item)
        return mark

    text = json.dumps(value, default=note)
    for rows, before in zip([*found, None], text.split(f'"{mark}"'), strict=True):
        yield before
        if rows is not None:
            yield from rows.json_blocks()


def _values(column: npt.NDArray[Any] | str, begin: int, end: int) -> Sequence[Any] | Iterator[Any]:
    if isinstance(column, str):
        return repeat(column)
    found: list[Any] = column[begin:end].tolist()
    return [None if each < 0 else each for each in found] if column.dtype.kind == "i" else found


def _texts(column: npt.NDArray[Any] | str, begin: int, end: int) -> Sequence[str] | Iterator[str]:
    if isinstance(column, str):
        return repeat(json.dumps(column))
    part = column[begin:end]
    if part.dtype.kind == "b":
        return ["true" if each else "false" for each in part.tolist()]
    if part.dtype.kind == "O":
        return [json.dumps(each) for each in part.tolist()]
    texts = list(map(str, part.tolist()))
    return ["null" if each[0] == "-" else each for each in texts] if (part < 0).any() else texts
