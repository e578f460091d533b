"""The meaning of a record's bytes: the type description of a job spec, as frozen values.

A description promises that its ``text`` parses back to an equal description, and that its ``arrow_type`` is the type of
the struct that decoding gives: fields f0, f1, … for TUPLE, the names for ROW, POJO and ROWDATA, and the one field f0
for everything else.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from cdr_core.flink.types.names import quote
from cdr_core.flink.types.sql import SqlType, fields_text, struct_type


class Kind(StrEnum):
    """The types without parts. Each is one of Flink's own serializers."""

    BOOLEAN = "BOOLEAN"
    BYTE = "BYTE"
    SHORT = "SHORT"
    INT = "INT"
    LONG = "LONG"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    CHAR = "CHAR"
    STRING = "STRING"
    BYTES = "BYTES"
    BIGINT_BIG = "BIGINT_BIG"
    DECIMAL_BIG = "DECIMAL_BIG"
    INSTANT = "INSTANT"
    DATE = "DATE"
    TIME = "TIME"
    TIMESTAMP = "TIMESTAMP"
    LOCALDATE = "LOCALDATE"
    LOCALTIME = "LOCALTIME"
    LOCALDATETIME = "LOCALDATETIME"
    OPAQUE = "OPAQUE"


PRIMITIVES = frozenset({Kind.BOOLEAN, Kind.BYTE, Kind.SHORT, Kind.INT, Kind.LONG, Kind.FLOAT, Kind.DOUBLE, Kind.CHAR})

_ARROW: dict[Kind, pa.DataType] = {
    Kind.BOOLEAN: pa.bool_(),
    Kind.BYTE: pa.int8(),
    Kind.SHORT: pa.int16(),
    Kind.INT: pa.int32(),
    Kind.LONG: pa.int64(),
    Kind.FLOAT: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.BYTES: pa.binary(),
    Kind.OPAQUE: pa.binary(),
}
"""Everything else is text: no Arrow type that tables know holds every BigDecimal, Instant or LocalDate."""


class TypeDescription:
    """Base of all descriptions."""

    __slots__ = ()

    @property
    @abstractmethod
    def text(self) -> str:
        """The canonical spelling."""

    @property
    @abstractmethod
    def value_type(self) -> pa.DataType:
        """Return the Arrow type of one value inside another."""

    @property
    def arrow_type(self) -> pa.StructType:
        """Return the Arrow type of a record of this type: always a struct."""
        return pa.struct([pa.field("f0", self.value_type)])


@dataclass(frozen=True, slots=True)
class Scalar(TypeDescription):
    """A value without parts. OPAQUE is the rest of the record, so it can only stand last."""

    kind: Kind

    @property
    def text(self) -> str:
        return str(self.kind)

    @property
    def value_type(self) -> pa.DataType:
        return _ARROW.get(self.kind, pa.string())


class StructKind(StrEnum):
    """Three ways to write fields: back to back; after a mask of nulls; sorted by name, each with a null flag."""

    TUPLE = "TUPLE"
    ROW = "ROW"
    POJO = "POJO"


@dataclass(frozen=True, slots=True)
class Struct(TypeDescription):
    """TUPLE, ROW or POJO; ``names`` and ``types`` have the same length, at least one, in the order of the text."""

    kind: StructKind
    names: tuple[str, ...]
    types: tuple[TypeDescription, ...]

    @property
    def text(self) -> str:
        if self.kind is StructKind.TUPLE:
            return f"TUPLE<{', '.join(type_.text for type_ in self.types)}>"
        return f"{self.kind}<{', '.join(f'{quote(n)} {t.text}' for n, t in zip(self.names, self.types, strict=True))}>"

    @property
    def value_type(self) -> pa.StructType:
        return pa.struct([pa.field(n, t.value_type) for n, t in zip(self.names, self.types, strict=True)])

    @property
    def arrow_type(self) -> pa.StructType:
        return self.value_type

    @property
    def byte_order(self) -> tuple[int, ...]:
        """Return positions of the fields as they follow each other in the bytes: a POJO's are sorted like
        Java strings.
        """
        if self.kind is not StructKind.POJO:
            return tuple(range(len(self.types)))
        return tuple(sorted(range(len(self.types)), key=lambda i: self.names[i].encode("utf-16-be", "surrogatepass")))


@dataclass(frozen=True, slots=True)
class Array(TypeDescription):
    """A Java array. ``boxed`` elements carry a presence byte each, as Flink writes all but primitives and strings."""

    element: TypeDescription

    @property
    def text(self) -> str:
        return f"ARRAY<{self.element.text}>"

    @property
    def value_type(self) -> pa.ListType:
        return pa.list_(self.element.value_type)

    @property
    def boxed(self) -> bool:
        """``ARRAY<LONG>`` is ``long[]``; ``ARRAY<NULLABLE<LONG>>`` is ``Long[]``; ``ARRAY<STRING>`` is ``String[]``."""
        bare = isinstance(self.element, Scalar) and self.element.kind in PRIMITIVES | {Kind.STRING}
        return not bare

    @property
    def content(self) -> TypeDescription:
        """Return the type that follows an element's presence byte, which takes the place of NULLABLE's own flag."""
        return self.element.element if isinstance(self.element, Nullable) else self.element


@dataclass(frozen=True, slots=True)
class Nullable(TypeDescription):
    """Flink's NullableSerializer without padding: a flag byte, 1 = null, else the value."""

    element: TypeDescription

    @property
    def text(self) -> str:
        return f"NULLABLE<{self.element.text}>"

    @property
    def value_type(self) -> pa.DataType:
        return self.element.value_type

    @property
    def arrow_type(self) -> pa.StructType:
        return self.element.arrow_type


@dataclass(frozen=True, slots=True)
class RowData(TypeDescription):
    """A row of a Flink SQL job, in its binary form."""

    names: tuple[str, ...]
    types: tuple[SqlType, ...]

    @property
    def text(self) -> str:
        return f"ROWDATA<{fields_text(self.names, self.types)}>"

    @property
    def value_type(self) -> pa.StructType:
        return struct_type(self.names, self.types)

    @property
    def arrow_type(self) -> pa.StructType:
        return self.value_type
