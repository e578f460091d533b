"""Names of what is written: the same whenever the same state is distributed in the same way."""

from __future__ import annotations

import uuid
from typing import Final

_SPACE: Final = uuid.UUID("2b1f5c8e-6f0d-5b0e-9a39-5c1d9cf0a7d4")


def name_of(operator_id: str, kind: str, index: int, parallelism: int) -> str:
    """Return a UUID, as Flink's own names of state files are."""
    return str(uuid.uuid5(_SPACE, f"{operator_id}/{kind}/{index}/{parallelism}"))
