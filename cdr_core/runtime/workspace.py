"""Where the phases of a recovery hand over to each other: one directory per recovery, the epoch in every path."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cdr_core.storage import join, storage_for


@dataclass(frozen=True, slots=True)
class Workspace:
    """The directory of one recovery. Nothing in it counts until a row of the metadata database names it."""

    root: str

    def attempt(self, epoch: int, *parts: str) -> str:
        """A place of one attempt; no two attempts share a path."""
        return join(self.root, f"e{epoch}", *parts)

    def server(self) -> str:
        """The directory of the recovery's Spark Connect server."""
        return join(self.root, "spark")


def write_json(uri: str, value: Mapping[str, Any]) -> bool:
    """Create a JSON object exclusively; ``False`` if the name was taken."""
    return storage_for(uri).create(uri, json.dumps(value).encode())


def read_json(uri: str) -> dict[str, Any]:
    """A JSON object that was written here."""
    value: dict[str, Any] = json.loads(storage_for(uri).read(uri))
    return value
