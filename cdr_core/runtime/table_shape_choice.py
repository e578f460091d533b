"""Which columns a recovery's table has: chosen when the recovery is created, and kept in its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cdr_core.channels.table_shapes import TableShape, shape_for
from cdr_core.commit.sinks import sink_for
from cdr_core.targets import Target

if TYPE_CHECKING:
    from cdr_core.metadata import Recovery
    from cdr_core.settings import Settings

SHAPE = "table_shape"
"""The option of a recovery to a table. Those that earlier releases created do not have it."""

EARLIER_RAW = "table_raw"
"""The option of an earlier release's recovery whose table has no column ``raw``."""


def choose_shape(target: Target, settings: Settings) -> TableShape:
    """The shape for a new recovery: that of the table, where it has one, else as set."""
    if not target.kind.is_table:
        return TableShape.VALUES_ONLY
    return shape_for(sink_for(target).columns(), raw=settings.table_raw)


def stored_shape(recovery: Recovery) -> TableShape:
    """The shape that a recovery was created with. Where there is no table, rows are only counted."""
    if not recovery.output.kind.is_table:
        return TableShape.VALUES_ONLY
    if SHAPE in recovery.options:
        return TableShape(recovery.options[SHAPE])
    return TableShape.RAW_ONLY if recovery.options.get(EARLIER_RAW, True) else TableShape.VALUES_ONLY


def shape_options(target: Target, shape: TableShape, existing: Recovery | None) -> Mapping[str, Any]:
    """The options that keep the shape: for a recovery that exists those that it has, for its options are compared."""
    if not target.kind.is_table:
        return {}
    if existing is not None:
        return {name: existing.options[name] for name in (SHAPE, EARLIER_RAW) if name in existing.options}
    return {SHAPE: str(shape)}
