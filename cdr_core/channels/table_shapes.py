"""The columns of a committed table. A table keeps its shape forever, so those of earlier releases are written too."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

import pyarrow as pa

from cdr_core.channels.element_columns import CONTENT, PLACE, RAW, type_of, value_fields
from cdr_core.errors import SpecRefused
from cdr_core.flink.types import Array, Kind, Nullable, Scalar, Struct, TypeDescription
from cdr_core.kernels.fingerprint import FINGERPRINT_BYTES
from cdr_core.planning.exchange_binding import PlannedExchange
from cdr_core.planning.plan import Plan

FINGERPRINT = "fingerprint"
LENGTH = "length"

NEW_PLACE = (
    pa.field("new_up", pa.int32(), nullable=False),
    pa.field("new_down", pa.int32(), nullable=False),
)
"""Where a record belongs at the new parallelism."""

IDENTITY = (
    pa.field(RAW, pa.binary()),
    pa.field(FINGERPRINT, pa.binary(FINGERPRINT_BYTES), nullable=False),
    pa.field(LENGTH, pa.int32(), nullable=False),
)
"""Columns that identify the bytes of a record: the bytes, where they are kept; both hash words of
:mod:`cdr_core.kernels.fingerprint`, each big-endian; and how many bytes they were hashed from.
"""


class TableShape(StrEnum):
    """The columns of a table that identify the bytes of a record."""

    RAW_ONLY = "raw-only"
    """``raw``, never null. The default of releases up to 0.1."""
    VALUES_ONLY = "values-only"
    """None of them. ``CDR_TABLE_RAW=false`` of releases up to 0.1."""
    OPAQUE_RAW = "opaque-raw"
    """``fingerprint`` and ``length``; ``raw`` is null except where a value cannot be shown otherwise. The default."""
    ALL_RAW = "all-raw"
    """``fingerprint`` and ``length``; ``raw`` is filled in every row. ``CDR_TABLE_RAW=true``."""

    @property
    def has_raw(self) -> bool:
        return self is not TableShape.VALUES_ONLY

    @property
    def has_fingerprint(self) -> bool:
        return self in (TableShape.OPAQUE_RAW, TableShape.ALL_RAW)

    @property
    def identifies_bytes(self) -> bool:
        """Return whether the ledger of a file follows from its rows alone."""
        return self is not TableShape.VALUES_ONLY

    def fills_raw(self, exchange: PlannedExchange) -> bool:
        """Return whether rows of this exchange hold their records' bytes."""
        return self.has_raw and (self is not TableShape.OPAQUE_RAW or has_opaque(type_of(exchange.record)))

    def schema(self, plan: Plan) -> pa.Schema:
        """Return the columns of a table for this plan. Raise if an exchange has the name of a column that all tables
        have.
        """
        content = [field for field in CONTENT if field.name != RAW or self is TableShape.RAW_ONLY]
        common = [*PLACE, *NEW_PLACE, *content, *(IDENTITY if self.has_fingerprint else ())]
        taken = {field.name for field in common}
        for exchange in plan.exchanges:
            if exchange.name.lower() in taken:
                raise SpecRefused(
                    f"exchange {exchange.name} is named like a column that every table has",
                    hint="give it another name in the job spec",
                )
        return pa.schema([*common, *value_fields(plan)])


def shape_for(columns: Collection[str] | None, *, raw: bool) -> TableShape:
    """Return the shape in which rows are added to a table with these columns; ``None`` = there is none yet.

    ``raw``: the bytes of every record are wanted, where the table leaves the choice.
    """
    if columns is None or FINGERPRINT in columns:
        return TableShape.ALL_RAW if raw else TableShape.OPAQUE_RAW
    return TableShape.RAW_ONLY if RAW in columns else TableShape.VALUES_ONLY


def has_opaque(description: TypeDescription) -> bool:
    """Return whether a part of the type, at any depth, is bytes that only the job can read."""
    if isinstance(description, Scalar):
        return description.kind is Kind.OPAQUE
    if isinstance(description, Struct):
        return any(has_opaque(each) for each in description.types)
    return isinstance(description, (Array, Nullable)) and has_opaque(description.element)
