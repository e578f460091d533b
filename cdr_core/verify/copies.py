"""Records of a recovery that somebody put into its table once more."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping

from cdr_core.errors import Corrupt
from cdr_core.verify.compare import differences, match
from cdr_core.verify.report import Difference, Kind
from cdr_core.verify.rows import Reading, RowReader
from cdr_core.verify.source import Expected
from cdr_core.verify.tables import Table


def copies(table: Table, readings: Mapping[str, Reading], expected: Mapping[str, Expected]) -> Iterator[Difference]:
    """Rows of files that nobody signed that are, place and content, records of the source: a reader sees them twice.

    Other rows there are somebody else's, as is a file that cannot be read.
    """
    for number, file in enumerate(table.unsigned()):
        reader = RowReader(readings)
        try:
            reader.add_file(number, io.BytesIO(file.read()), file.uri)
        except Corrupt:
            continue
        for name, rows in reader.rows().items():
            if name in expected:
                again = match(expected[name], rows).equal
                yield from differences(
                    name, Kind.DOUBLED, rows.at(again), f"once more in {file.name}, which others appended"
                )
