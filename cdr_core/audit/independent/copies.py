"""Records of a recovery that somebody put into its table once more."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping

from cdr_core.audit.independent.checkpoint import Channel
from cdr_core.audit.independent.compare import matches
from cdr_core.audit.independent.digests import Expected
from cdr_core.audit.independent.report import Difference, Kind, of_records
from cdr_core.audit.independent.rows import Reading, RowReader
from cdr_core.audit.independent.tables import Table
from cdr_core.errors import Corrupt


def copies(table: Table, readings: Mapping[str, Reading], expected: Mapping[Channel, Expected]) -> Iterator[Difference]:
    """Rows of files that nobody signed that are, place and content, records of the source: a reader sees them twice.

    Other rows there are somebody else's, as is a file that cannot be read.
    """
    for number, file in enumerate(table.unsigned()):
        reader = RowReader(readings)
        try:
            reader.add_file(number, io.BytesIO(file.read()), file.uri)
        except Corrupt:
            continue
        for channel, rows in reader.channels.items():
            if channel in expected:
                again = rows.positions[matches(expected[channel], rows)[1]]
                yield from of_records(Kind.DOUBLED, channel, again, f"once more in {file.name}, which others appended")
