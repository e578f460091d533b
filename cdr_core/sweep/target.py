"""Prepared output in a target that was never published.

It is listed for every recovery, and removed only for one that is over: until then a commit may still want it. Whether a
file was published is decided by the target's own manifests, and if one of them cannot be read, nothing is removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from cdr_core.errors import CdrError
from cdr_core.metadata import Prepared, Recovery
from cdr_core.spill.release import strings
from cdr_core.storage import is_local, join, storage_for
from cdr_core.storage.s3 import S3Storage
from cdr_core.sweep.objects import Found
from cdr_core.sweep.report import Left

_DATA = re.compile(r"^e(\d+)-[^/]+\.parquet$")
WHY = "prepared by an attempt that is over, and neither a row nor a manifest of the target names it"


def unpublished(recovery: Recovery, prepared: tuple[Prepared, ...]) -> tuple[list[Found], list[Left]]:
    """Prepared files in the target's data directory of this recovery that nothing names, and what cannot be told."""
    kind, _, address = recovery.target.partition(":")
    directory = address.removeprefix("file://").rstrip("/")
    data = join(directory, "data", recovery.id)
    if kind != "parquet" or (is_local(directory) and (not Path(data).is_dir() or Path(data).is_symlink())):
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
