"""Which columns a recovery's table has: chosen when the recovery is created, and kept in its options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdr_core.channels.table_shapes import TableShape, shape_for
from cdr_core.commit.sinks import sink_for
from cdr_core.targets import Target

if TYPE_CHECKING:
    from cdr_core.metadata import Recovery
    from cdr_core.settings import Settings


def choose_shape(target: Target, settings: Settings) -> TableShape:
    """The shape for a new recovery: that of the table, where it has one, else as set."""
    if not target.kind.is_table:
        return TableShape.VALUES_ONLY
    return shape_for(sink_for(target).columns(), raw=settings.table_raw)


def stored_shape(recovery: Recovery) -> TableShape:
    """The shape that a recovery was created with. Where there is no table, rows are only counted."""
    if not recovery.output.kind.is_table:
        return TableShape.VALUES_ONLY
    if recovery.options.table_shape is not None:
        return TableShape(recovery.options.table_shape)
    return TableShape.VALUES_ONLY if recovery.options.table_raw is False else TableShape.RAW_ONLY
