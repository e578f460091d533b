"""Prepared output in a target that was never published.

It is listed for every recovery, and removed only for one that is over: until then a commit may still want it. Whether a
file was published is decided by the target's own manifests, and if one of them cannot be read, nothing is removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from cdr_core.commit.sinks import lake_for
from cdr_core.errors import CdrError
from cdr_core.metadata import Prepared, Recovery, RecoveryState
from cdr_core.spill.set_cleanup import strings
from cdr_core.storage import canonical, is_local, join, storage_for
from cdr_core.storage.s3 import S3Storage
from cdr_core.sweep.objects import Found
from cdr_core.sweep.report import Left

_DATA = re.compile(r"^e(\d+)-[^/]+\.parquet$")
METADATA = "_metadata"
WHY = "prepared by an attempt that is over, and neither a row nor a manifest of the target names it"


def unpublished(recovery: Recovery, prepared: tuple[Prepared, ...]) -> tuple[list[Found], list[Left]]:
    """Prepared files in the target's data directory of this recovery that nothing names, and what cannot be told."""
    kind, directory = recovery.output.kind, canonical(recovery.output.address).rstrip("/")
    if kind.is_checkpoint:
        return _beside_checkpoint(recovery, directory, prepared)
    if kind.is_lake:
        return _in_lake(recovery, prepared)
    data = join(directory, "data", recovery.id)
    if not kind.has_manifests or (is_local(directory) and (not Path(data).is_dir() or Path(data).is_symlink())):
        return [], []
    try:
        # Listed first: what is published in between is named by a manifest that is read afterwards.
        files = list(_files(data))
        named = {name for manifest in _manifests(directory) for name in strings(manifest)}
    except (CdrError, OSError, ValueError) as error:
        return [], [Left(data, f"a manifest of the target cannot be read ({error})")]
    named |= {name for entry in prepared for name in strings(json.loads(entry.manifest))}
    found, left = [], []
    for name, size in files:
        match = _DATA.match(name.removeprefix(f"{data}/"))
        if match is None or size is None:
            left.append(Left(name, "not a file that cdr makes there"))
        elif name.removeprefix(f"{directory}/") not in named and _is_over(recovery, int(match.group(1))):
            found.append(Found(name, int(match.group(1)), size))
    return found, left


def _in_lake(recovery: Recovery, prepared: tuple[Prepared, ...]) -> tuple[list[Found], list[Left]]:
    """Data files of a recovery that is over; before that a catalog would be asked in vain. Manifests that a commit
    wrote and did not publish bear no recovery's name, so they are left to the owner of the table.
    """
    if not recovery.state.is_final:
        return [], []
    ours = re.compile(rf"^(?:data-cdr-{re.escape(recovery.id)}-)?e(\d+)-.+\.parquet$")
    named = {name.rpartition("/")[2] for entry in prepared for name in strings(json.loads(entry.manifest))}
    try:
        lake = lake_for(recovery.output)
        assert lake is not None, "asked for such targets only"
        # Listed first, as above. Most of the time rows name everything, and no snapshot needs to be read.
        unnamed = [uri for uri in lake.files_of(recovery.id) if uri.rpartition("/")[2] not in named]
        listed = lake.listed() if unnamed else frozenset()
        orphans = [uri for uri in unnamed if uri.rpartition("/")[2] not in listed]
        matches = [(uri, match) for uri in orphans if (match := ours.match(uri.rpartition("/")[2]))]
        return [Found(uri, int(match.group(1)), storage_for(uri).size(uri)) for uri, match in matches], []
    except (CdrError, OSError, ValueError) as error:
        return [], [Left(recovery.target, f"what it lists cannot be told ({error})")]


def _beside_checkpoint(
    recovery: Recovery, directory: str, prepared: tuple[Prepared, ...]
) -> tuple[list[Found], list[Left]]:
    """Files that bear this recovery's name beside a ``_metadata``, if there is one, that does not name them.

    Until the recovery is over nothing is taken for a leftover that a commit may still publish. Names of such files are
    plain ASCII, so a ``_metadata`` that names one contains it as it is.
    """
    ours = re.compile(rf"^cdr-{re.escape(recovery.id)}-e(\d+)-.+$")
    if is_local(directory) and not Path(directory).is_dir():
        return [], []
    try:
        names = [(name, match) for name in names_in(directory) if (match := ours.match(name.rpartition("/")[2]))]
        metadata = join(directory, METADATA)
        there = storage_for(metadata).exists(metadata)
        shown = storage_for(metadata).read(metadata) if there else b""
    except (CdrError, OSError) as error:
        return [], [Left(directory, f"it cannot be looked at ({error})")]
    if recovery.state is RecoveryState.DONE and not there:
        return [], [Left(directory, "its _metadata is gone, so what it named is not known")]
    named = {name for entry in prepared for name in strings(json.loads(entry.manifest))}
    found = []
    for name, match in names:
        file, epoch = name.rpartition("/")[2], int(match.group(1))
        needed = file.encode() in shown or (file in named and not recovery.state.is_final)
        if not needed and _is_over(recovery, epoch):
            found.append(Found(name, epoch, storage_for(name).size(name)))
    return found, []


def names_in(directory: str) -> Iterator[str]:
    """Files of a directory, those that were never finished included."""
    if is_local(directory):
        yield from sorted(str(path) for path in Path(directory).iterdir() if path.is_file() and not path.is_symlink())
    else:
        yield from storage_for(directory).list(directory)


def _files(data: str) -> Iterator[tuple[str, int | None]]:
    """Names and sizes; no size for what is no file."""
    if not is_local(data):
        yield from S3Storage().walk(data)
        return
    for path in sorted(Path(data).iterdir()):
        yield str(path), path.stat().st_size if path.is_file() and not path.is_symlink() else None


def _is_over(recovery: Recovery, epoch: int) -> bool:
    return recovery.state.is_final or epoch < recovery.epoch


def _manifests(directory: str) -> Iterator[object]:
    manifests = join(directory, "_cdr")
    for uri in storage_for(manifests).list(manifests):
        if uri.endswith(".json"):
            yield json.loads(storage_for(uri).read(uri))
