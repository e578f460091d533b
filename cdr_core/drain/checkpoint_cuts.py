"""Where a complete recovery checkpoint left each subtask."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cdr_core.drain.checkpoint_manifest import VERSION_1, manifest_bytes, read_manifest, version_of
from cdr_core.drain.earlier_cuts import cut_of_version_1

if TYPE_CHECKING:
    from cdr_core.drain.snapshots import Cut
    from cdr_core.metadata import RecoveryCheckpoint
    from cdr_core.planning.plan import Plan


def read_cuts(row: RecoveryCheckpoint, plan: Plan) -> dict[int, Cut]:
    """The cuts of a complete checkpoint by subtask. Raise if its manifest or a snapshot is gone or was changed."""
    data = manifest_bytes(row)
    if version_of(data) != VERSION_1:
        return {cut.subtask: cut.read() for cut in read_manifest(data).cuts}
    cuts = {int(subtask): cut for subtask, cut in json.loads(data)["cuts"].items()}
    return {number: cut_of_version_1(plan, number, cut["position"], cut["body"]) for number, cut in cuts.items()}


def spill_manifests(row: RecoveryCheckpoint) -> dict[int, str]:
    """By subtask, the manifest of its spill set."""
    data = manifest_bytes(row)
    if version_of(data) != VERSION_1:
        return {cut.subtask: cut.manifest for cut in read_manifest(data).cuts}
    return {int(subtask): cut["body"]["manifest"] for subtask, cut in json.loads(data)["cuts"].items()}
