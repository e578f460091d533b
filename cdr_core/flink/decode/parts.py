"""The parts of a record, and the slots that receive the position of each."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from cdr_core.flink.types import PRIMITIVES, Array, Kind, Nullable, RowData, Scalar, Struct, StructKind, TypeDescription

WIDTHS = {
    Kind.BOOLEAN: 1,
    Kind.BYTE: 1,
    Kind.SHORT: 2,
    Kind.INT: 4,
    Kind.LONG: 8,
    Kind.FLOAT: 4,
    Kind.DOUBLE: 8,
    Kind.CHAR: 2,
    Kind.INSTANT: 12,
    Kind.DATE: 8,
    Kind.TIME: 8,
    Kind.TIMESTAMP: 12,
    Kind.LOCALDATE: 6,
    Kind.LOCALTIME: 7,
    Kind.LOCALDATETIME: 13,
}
"""Bytes of the values that always take the same."""


@dataclass(slots=True)
class Part:
    """A value, struct or array inside the record, in the order of the description.

    ``slot`` receives a value's position, an array's count, or a struct's beginning; −1 if it is not needed. Primitives
    in a row share the slot of the first: ``delta`` is the part's distance from it, ``run`` the bytes of them all at the
    first. ``flagged`` parts have NULLABLE's byte in front. ``scope`` numbers the repetition a part is in: 0 = once a
    record, else once an element of that scope's array. ``first`` to ``last`` are all its slots of that scope, to be set
    when it is null.
    """

    description: TypeDescription
    path: str
    scope: int
    flagged: bool = False
    slot: int = -1
    delta: int = 0
    run: int = 0
    first: int = 0
    last: int = 0
    children: list[Part] = field(default_factory=list)

    @property
    def width(self) -> int:
        """Return the number of bytes of a value that always takes the same, else 0."""
        return WIDTHS.get(self.description.kind, 0) if isinstance(self.description, Scalar) else 0


def root_path(description: TypeDescription) -> str:
    """Return the path of a record: one that is not a struct is shown as the one field f0."""
    inner = description.element if isinstance(description, Nullable) else description
    return "" if isinstance(inner, Struct | RowData) else "f0"


class Planner:
    """Numbers the slots scope by scope, so that those of a part that may be null are neighbours."""

    def __init__(self, wanted: Collection[str] | None) -> None:
        self.slot_scopes: list[int] = []
        self.slotted = 0
        self._wanted = wanted
        self._pending: list[tuple[Part, Array]] = []
        self._scopes = 1

    def plan(self, description: TypeDescription) -> Part:
        """Return the tree of parts with their slots; elements of arrays come after everything around them."""
        root = self._part(description, root_path(description), 0, optional=False)
        while self._pending:
            part, array = self._pending.pop(0)
            part.children.append(self._part(array.content, f"{part.path}[]", self._scopes, array.boxed))
            self._scopes += 1
        return root

    def _part(self, description: TypeDescription, path: str, scope: int, optional: bool) -> Part:
        flagged = isinstance(description, Nullable)
        inner = description.element if isinstance(description, Nullable) else description
        part = Part(inner, path, scope, flagged, first=len(self.slot_scopes))
        if isinstance(inner, Struct):
            self._struct(part, inner, optional or flagged)
        elif isinstance(inner, Array):
            part.slot = self._new_slot(part, 1)
            self._pending.append((part, inner))
        else:
            part.slot = self._new_slot(part, 1 if part.width else 2)
            part.run = part.width
        part.last = len(self.slot_scopes)
        return part

    def _struct(self, part: Part, struct: Struct, optional: bool) -> None:
        # The beginning of a struct is needed if it may be null, and for the kind in a row's mask.
        has_kind = struct.kind is StructKind.ROW and (part.path == "" or self._wanted is not None)
        if optional or has_kind or struct.kind is StructKind.POJO:
            part.slot = self._new_slot(part, 1)
        planned: dict[int, Part] = {}
        before: Part | None = None
        for i in struct.byte_order:
            path = f"{part.path}.{struct.names[i]}" if part.path else struct.names[i]
            if before and self._runs_on(before) and self._is_primitive(struct.types[i]):
                planned[i] = Part(struct.types[i], path, part.scope, slot=before.slot, delta=before.run)
                before.run += planned[i].width
                continue
            planned[i] = self._part(struct.types[i], path, part.scope, struct.kind is not StructKind.TUPLE)
            before = planned[i] if struct.kind is StructKind.TUPLE else None
        part.children = [planned[i] for i in range(len(planned))]

    def _runs_on(self, part: Part) -> bool:
        return self._wanted is None and not part.flagged and self._is_primitive(part.description)

    def _is_primitive(self, description: TypeDescription) -> bool:
        """Return whether the value needs no null slot; dates and times do: their null is found later."""
        return isinstance(description, Scalar) and description.kind in PRIMITIVES

    def _new_slot(self, part: Part, count: int) -> int:
        if self._wanted is not None and part.path not in self._wanted:
            return -1
        self.slotted += 1
        self.slot_scopes.extend([part.scope] * count)
        return len(self.slot_scopes) - count
