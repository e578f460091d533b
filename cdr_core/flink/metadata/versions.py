"""Versions of ``_metadata`` and their parts."""

from __future__ import annotations

from typing import Final

MAGIC: Final = 0x4960672D
MASTER_MAGIC: Final = 0xC96B1696 - (1 << 32)
"""As a signed i32."""

LEGACY_VERSION: Final = 2
"""Flink 1.3 to 1.10: read, never written; Flink does the same."""

OLDEST_READ: Final = LEGACY_VERSION
OLDEST_WRITTEN: Final = 3
NEWEST_VERSION: Final = 6


def has_properties(version: int) -> bool:
    """Return whether checkpoint properties end the file: since Flink 1.16."""
    return version >= 4


def has_names(version: int) -> bool:
    """Return whether operators have name and uid: since Flink 2.0."""
    return version >= 5
