"""What a complete recovery checkpoint says of each subtask."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cdr_core.audit.ledger import NOTHING, Ledger
from cdr_core.errors import StorageError
from cdr_core.phases.earlier import cut_of_version_1
from cdr_core.storage import storage_for
from cdr_core.storage.columns import read_columns, unpack_columns

if TYPE_CHECKING:
    from cdr_core.metadata import RecoveryCheckpoint
    from cdr_core.rescale.plan import Plan


def read_cuts(row: RecoveryCheckpoint, plan: Plan) -> dict[int, dict[str, Any]]:
    """The cuts of a complete checkpoint by subtask; a manifest that is not the recorded one is an error."""
    assert row.manifest is not None, "a complete checkpoint has a manifest"
    data = storage_for(row.manifest).read(row.manifest)
    if hashlib.sha256(data).hexdigest() != row.sha256:
        raise StorageError(
            f"the manifest of recovery checkpoint {row.checkpoint_id} at {row.manifest} was changed",
            hint="restore the file, or recover to another target",
        )
    value = json.loads(data)
    cuts = {int(subtask): cut for subtask, cut in value["cuts"].items()}
    if value["version"] == 1:
        return {number: {**cut, "body": cut_of_version_1(plan, number, cut["body"])} for number, cut in cuts.items()}
    return cuts


def ledger_of(body: Mapping[str, Any]) -> Ledger:
    """What had been drained up to a cut."""
    if body.get("result"):
        return Ledger.from_columns(read_columns(*body["result"]))
    return Ledger.from_columns(unpack_columns(body["columns"])) if body["columns"] else NOTHING
