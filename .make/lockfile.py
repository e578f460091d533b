"""Reading requirements.lock without any package: name, version, marker and hashes of every pin."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_HEAD = re.compile(
    r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;\\]+)(?:\s*;\s*(?P<marker>[^\\]+?))?\s*\\?$"
)
_HASH = re.compile(r"^    --hash=sha256:(?P<digest>[0-9a-f]{64})\s*\\?$")


@dataclass(frozen=True, slots=True)
class Pin:
    """One pinned package; ``marker`` is empty where it applies everywhere, ``text`` is its lines as they stand."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]
    text: str


def read_lock(path: Path) -> dict[str, list[Pin]]:
    """Pins by name; a name has several where markers choose between versions. Any other line is refused."""
    pins: dict[str, list[Pin]] = {}
    for block in _blocks(path):
        head = _HEAD.match(block[0])
        hashes = [_HASH.match(line) for line in block[1:]]
        if head is None or not all(hashes):
            raise ValueError(f"{path.name} holds a line that is neither a pin nor a hash near {block[0]!r}")
        pin = Pin(
            name=head["name"],
            version=head["version"],
            marker=head["marker"] or "",
            hashes=tuple(match["digest"] for match in hashes if match),
            text="\n".join(block) + "\n",
        )
        pins.setdefault(pin.name, []).append(pin)
    return pins


def _blocks(path: Path) -> list[list[str]]:
    """A pin with its hashes is one block; comments and empty lines are left out."""
    blocks: list[list[str]] = []
    for line in path.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith(" ") and blocks:
            blocks[-1].append(line)
        else:
            blocks.append([line])
    return blocks
