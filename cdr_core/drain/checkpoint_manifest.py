"""The manifest of a recovery checkpoint: where each subtask goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from cdr_core.drain.snapshots import CutEntry
from cdr_core.errors import StorageError, other_version
from cdr_core.storage import join, storage_for

if TYPE_CHECKING:
    from cdr_core.metadata import RecoveryCheckpoint
    from cdr_core.runtime.driver import PhaseRun

MANIFEST_VERSION = 3
"""1 held the cuts themselves, by byte of their spill sets. 2 was never released."""
VERSION_1 = 1


class CheckpointManifest(msgspec.Struct, frozen=True):
    """One entry per subtask, in their order."""

    checkpoint: int
    cuts: tuple[CutEntry, ...]
    version: int = MANIFEST_VERSION


def manifest_uri(run: PhaseRun, number: int) -> str:
    """Where an attempt puts the manifest of a checkpoint."""
    return join(run.workspace.attempt(run.epoch, "checkpoints"), f"{number:06d}.json")


def write_manifest(run: PhaseRun, number: int, cuts: Iterable[CutEntry]) -> tuple[str, str]:
    """The place and SHA-256 of the manifest."""
    uri = manifest_uri(run, number)
    data = msgspec.json.encode(CheckpointManifest(number, tuple(sorted(cuts, key=lambda cut: cut.subtask))))
    storage = storage_for(uri)
    if not storage.create(uri, data):  # an earlier try at this number, which was not recorded
        storage.delete(uri)
        storage.create(uri, data)
    return uri, hashlib.sha256(data).hexdigest()


def manifest_bytes(row: RecoveryCheckpoint) -> bytes:
    """The manifest of a complete checkpoint; one that is not the recorded one is an error."""
    assert row.manifest is not None, "a complete checkpoint has a manifest"
    data = storage_for(row.manifest).read(row.manifest)
    if hashlib.sha256(data).hexdigest() != row.sha256:
        raise StorageError(
            f"the manifest of recovery checkpoint {row.checkpoint_id} at {row.manifest} was changed",
            hint="restore the file, or recover to another target",
        )
    return data


def version_of(data: bytes) -> int:
    return int(json.loads(data)["version"])


def read_manifest(data: bytes) -> CheckpointManifest:
    if version_of(data) != MANIFEST_VERSION:
        raise other_version("the manifest of a recovery checkpoint", version_of(data), MANIFEST_VERSION)
    return msgspec.json.decode(data, type=CheckpointManifest)
