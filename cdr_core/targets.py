"""Targets: where a recovery's output goes, as a value. Every kind of target is declared here, once."""

from __future__ import annotations

from dataclasses import dataclass

from cdr_core.errors import Refused

_PLACE, _OBJECTS, _TABLE = r"(/|file:///)", r"s3://[^/\s]+/", r"[^/\s]+\.[^/\s]+"
_ANY_PLACE = rf"({_PLACE}|{_OBJECTS})\S.*"


@dataclass(frozen=True, slots=True)
class TargetKind:
    """What can be done with targets of a kind. ``sink`` is ``module:class``; ``pattern`` matches an address in a form.

    ``is_table``: rows, which can be published more than once. ``is_checkpoint``: a checkpoint in Flink's format.
    ``is_lake``: only the table's library knows which files are in it. ``has_manifests``: a directory whose manifests
    in ``_cdr`` list its files. ``has_path``: the address is a path or an address of a storage. ``keeps``: the output
    stays. ``extra``: the extra of the package that the sink needs.
    """

    name: str
    syntax: str
    sink: str
    pattern: str
    is_table: bool = False
    is_checkpoint: bool = False
    is_lake: bool = False
    has_manifests: bool = False
    has_path: bool = True
    keeps: bool = True
    extra: str = ""


_KINDS = (
    TargetKind(
        "checkpoint",
        "checkpoint:DIR",
        "cdr_core.commit.sinks.checkpoint:CheckpointSink",
        _ANY_PLACE,
        is_checkpoint=True,
    ),
    TargetKind(
        "parquet",
        "parquet:DIR",
        "cdr_core.commit.sinks.parquet:ParquetSink",
        _ANY_PLACE,
        is_table=True,
        has_manifests=True,
    ),
    TargetKind(
        "iceberg",
        "iceberg:CATALOG/db.table",
        "cdr_core.commit.sinks.iceberg:IcebergSink",
        rf"[^/\s]+/{_TABLE}",
        is_table=True,
        is_lake=True,
        has_path=False,
        extra="iceberg",
    ),
    TargetKind(
        "paimon",
        "paimon:WAREHOUSE/db.table",
        "cdr_core.commit.sinks.paimon:PaimonSink",
        rf"({_PLACE}\S+/|{_OBJECTS}(\S+/)?){_TABLE}",
        is_table=True,
        is_lake=True,
        extra="paimon",
    ),
    TargetKind("none", "none:", "cdr_core.commit.sinks.none:NoneSink", "", has_path=False, keeps=False),
)
KINDS = {kind.name: kind for kind in _KINDS}
SYNTAXES = tuple(kind.syntax for kind in _KINDS)
PATTERN = "^(" + "|".join(f"{kind.name}:{kind.pattern}" for kind in _KINDS) + ")$"
"""What a form accepts."""


@dataclass(frozen=True, slots=True)
class Target:
    """A kind and an address, written ``kind:address``."""

    kind: TargetKind
    address: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """Raise ``Refused`` for a text that names no place, or a kind that does not exist."""
        name, colon, address = text.partition(":")
        if not colon or (not address and name != "none"):
            raise Refused(f"target {text!r} names no place", hint=f"write one of {', '.join(SYNTAXES)}")
        if name not in KINDS:
            raise Refused(f"target {text!r}: there is no sink {name!r}", hint=f"use one of {', '.join(SYNTAXES)}")
        return cls(KINDS[name], address)

    def __str__(self) -> str:
        return f"{self.kind.name}:{self.address}"
