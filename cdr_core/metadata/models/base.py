"""What every table shares: names of constraints, times, states, sizes."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Enum, ForeignKey, MetaData, Text, TypeDecorator
from sqlalchemy.orm import DeclarativeBase, mapped_column


class UtcTime(TypeDecorator[datetime]):
    """An aware time, the same on both databases. Only the age of a waiting request is decided by comparing clocks."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("a time without a zone cannot be stored")
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        # SQLite forgets the zone, PostgreSQL answers in the session's.
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def utc_now() -> datetime:
    return datetime.now(UTC)


Size = Annotated[int, mapped_column(BigInteger)]
"""Counts of bytes and records: they outgrow 32 bits."""
RecoveryKey = Annotated[str, mapped_column(ForeignKey("recovery.id"), primary_key=True)]
RecoveryRef = Annotated[str, mapped_column(ForeignKey("recovery.id"), index=True)]


class Base(DeclarativeBase):
    # Constraints have names so that a migration can find them on either database.
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        str: Text(),
        datetime: UtcTime(),
        dict[str, Any]: JSON(none_as_null=True),
        list[dict[str, Any]]: JSON(none_as_null=True),
        # Words, not a native type: PostgreSQL cannot drop a value from one, SQLite has none.
        StrEnum: Enum(StrEnum, native_enum=False, length=16, values_callable=lambda kind: [m.value for m in kind]),
    }
