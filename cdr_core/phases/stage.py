"""stage, the first step of read: what lies on S3 is brought to the workspace, so that each byte is fetched once.

Unit: a range of an object, 8 to 16 MiB where the object has as many, cut where chunks begin. A checkpoint on local
disks has none, and state that is inside `_metadata` comes with it. Once read is done, nobody needs the source any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cdr_core.errors import CorruptChannelState, Unreadable, Where
from cdr_core.faults import reach
from cdr_core.flink.checkpoint import METADATA_FILE
from cdr_core.phases.meter import Meter, unit_of
from cdr_core.phases.quarantine import QUARANTINE
from cdr_core.phases.unit import Job, Outcome
from cdr_core.phases.workspace import write_json
from cdr_core.rescale.cells import LONGEST_REQUEST, Cells, requests
from cdr_core.rescale.plan import Plan
from cdr_core.rescale.remote import COMPLETE, RemoteState, is_remote, object_stats
from cdr_core.rescale.source import open_planned
from cdr_core.rescale.staged import make_index
from cdr_core.storage import Stat, is_local, join, storage_for
from cdr_core.storage.local import explained, local_path, make_directories, publish_exclusively, temporary_beside

if TYPE_CHECKING:
    from cdr_core.phases.driver import Drive


def prepare(drive: Drive) -> dict[str, Any]:
    """Ranges of every object that holds channel state of the checkpoint, and of its metadata; none if all are local,
    and none for a workspace on S3: there is no point in bringing them from one bucket to another.
    """
    if not is_local(drive.workspace.root):
        return {}
    directory, sha256 = drive.recovery.source.uri, drive.recovery.source.metadata_sha256
    state = RemoteState(open_planned(directory, sha256))
    metadata = [join(directory, METADATA_FILE)] if is_remote(directory) else []
    salvages = drive.recovery.options["on_corrupt"] == QUARANTINE
    units: dict[str, Any] = {}
    try:
        for uri, found in object_stats([*metadata, *state.uris]).items():
            for unit in _units(uri, found, None if uri in metadata else state, salvages):
                units[f"stage-{len(units):05d}"] = unit
    except Unreadable as error:
        raise _corrupt(directory, error) from None
    return units


def _units(uri: str, found: Stat | Unreadable, state: RemoteState | None, salvages: bool) -> Iterator[dict[str, Any]]:
    """The ranges of one object. Where damage is put aside, one that is missing or empty is a unit without bytes, so
    that the index knows of it, and of one that is too short there is what there is.
    """
    if isinstance(found, Unreadable):
        if not salvages or state is None:
            raise found
        yield {"uri": uri, "size": 0, "tag": "", "start": 0, "end": 0, "missing": found.what}
        return
    if state is not None and not salvages:
        state.require_whole(uri, found)
    cells = _whole(found.size) if state is None else state.cells(uri, found)
    for start, end in _ranges(cells) or [(0, 0)]:
        yield {"uri": uri, "size": found.size, "tag": found.tag, "start": start, "end": end}


def _whole(size: int) -> Cells:
    starts = np.arange(0, size, LONGEST_REQUEST, dtype=np.int64)
    return Cells(starts, np.append(starts[1:], size))


def _ranges(cells: Cells) -> list[tuple[int, int]]:
    count = len(cells.starts)
    runs = requests(cells, np.arange(count), np.zeros(count, np.bool_))
    return [(int(cells.starts[first]), int(cells.ends[last])) for first, last in runs]


def execute(job: Job, plan: Plan, unit: Mapping[str, Any], name: str) -> Outcome:
    """Fetch one range into a file of its own, which exists when it is whole and durable."""
    path = local_path(job.directory) / f"{name}.bytes"
    storage = storage_for(unit["uri"])
    meter = Meter(job, unit_of(name), unit["end"] - unit["start"])
    with explained(path, "write"):
        make_directories(path.parent)
        with temporary_beside(path) as temporary:
            with temporary.open("xb") as file:
                for start in range(unit["start"], unit["end"], LONGEST_REQUEST):
                    length = min(LONGEST_REQUEST, unit["end"] - start)
                    file.write(_fetch(storage, plan.checkpoint, unit, start, length))
                    meter.add(0, length)
            published = publish_exclusively(temporary, path)
            assert published, "the name was drawn for this very try"
    reach("stage.written")
    return Outcome(records=0, bytes=unit["end"] - unit["start"], detail={**unit, "file": str(path)})


def _fetch(storage: Any, checkpoint: str, unit: Mapping[str, Any], start: int, length: int) -> bytes:
    try:
        data: bytes = storage.read(unit["uri"], start, length, tag=unit["tag"])
    except Unreadable as error:
        raise _corrupt(checkpoint, error) from None
    return data


def finish(drive: Drive, units: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Write the index of what is staged. Ranges that earlier attempts fetched must be of the very same objects."""
    if not units:
        return {}
    ranges: dict[str, list[tuple[int, int, str]]] = {}
    for unit, result in zip(units.values(), results, strict=True):
        if any(result[field] != unit[field] for field in unit):
            changed = Unreadable(f"{unit['uri']} changed while it was being staged", hint=COMPLETE)
            raise _corrupt(drive.recovery.source.uri, changed)
        if unit["start"] < unit["end"]:
            ranges.setdefault(unit["uri"], []).append((unit["start"], unit["end"], result["file"]))
    index = drive.workspace.attempt(drive.epoch, str(drive.phase), "staged.json")
    sizes = {unit["uri"]: unit["size"] for unit in units.values()}
    missing = {unit["uri"]: unit["missing"] for unit in units.values() if "missing" in unit}
    write_json(index, make_index(sizes, ranges, missing))
    return {"staged": index, "fetched_bytes": expected_bytes(units)}


def expected_bytes(units: Mapping[str, Any]) -> int:
    """What these units fetch."""
    return sum(unit["end"] - unit["start"] for unit in units.values())


def _corrupt(checkpoint: str, error: Unreadable) -> CorruptChannelState:
    where = Where(checkpoint=checkpoint)
    return CorruptChannelState(f"the source cannot be staged: {error.what}", where=where, hint=error.hint or COMPLETE)
