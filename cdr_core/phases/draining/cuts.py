"""What a complete recovery checkpoint says of each subtask."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from cdr_core.errors import StorageError
from cdr_core.storage import storage_for

if TYPE_CHECKING:
    from cdr_core.metadata import RecoveryCheckpoint


def read_cuts(row: RecoveryCheckpoint) -> dict[int, dict[str, Any]]:
    """The cuts of a complete checkpoint by subtask; a manifest that is not the recorded one is an error."""
    assert row.manifest is not None, "a complete checkpoint has a manifest"
    data = storage_for(row.manifest).read(row.manifest)
    if hashlib.sha256(data).hexdigest() != row.sha256:
        raise StorageError(
            f"the manifest of recovery checkpoint {row.checkpoint_id} at {row.manifest} was changed",
            hint="restore the file, or recover to another target",
        )
    return {int(subtask): cut for subtask, cut in json.loads(data)["cuts"].items()}
