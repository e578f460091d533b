"""The way that ``cdr elements`` goes: damaged files on a disk, a plan, every element of every channel."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from cdr_core.channels.channel_source import open_channel, open_checkpoint
from cdr_core.channels.element_reader import OWNER, element_batches, element_schema
from cdr_core.errors import CdrError
from cdr_core.planning.job_spec import JobSpec, parse_spec
from cdr_core.planning.parallelism import parse_parallelism
from cdr_core.planning.plan import Plan, make_plan
from tests.flink_formats.hostile.corpus import DIRECTORY, METADATA

SPLIT = 1 << 20
WISHES = ("same", "1", "3")
_numbers = itertools.count()


class Lost(Exception):
    """Elements are missing, or there are too many."""


def read_elements(spec: str, files: dict[str, bytes], number: int) -> None:
    """Open, plan and read a checkpoint of these files; damage is an error of cdr's own, or nothing is missing.

    ``number`` chooses the wish. A file whose name has a folder lies beside the checkpoint, all others in it.
    """
    root = Path(_scratch()) / str(next(_numbers))  # a new place each time: what is open is remembered by its address
    try:
        for name, data in files.items():
            path = root / name if "/" in name else root / DIRECTORY / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        with suppress(CdrError):
            checkpoint = open_checkpoint(str(root / DIRECTORY / METADATA))
            wish = parse_parallelism(WISHES[number % len(WISHES)])
            _read(make_plan(checkpoint, _spec(spec), wish, SPLIT))
    finally:
        shutil.rmtree(root)


def _read(plan: Plan) -> None:
    wanted = frozenset(element_schema(plan).names) | {OWNER.name}
    for number in range(len(plan.channels)):
        read = 0
        try:
            for batch in element_batches(plan, number, wanted):
                batch.validate(full=True)
                read += sum(length + 4 for length in batch.column("length").to_pylist())
        except CdrError:
            continue
        if read != open_channel(plan, number).size:
            raise Lost(f"{read} bytes of elements in a channel of {open_channel(plan, number).size}")


@lru_cache(maxsize=8)
def _spec(text: str) -> JobSpec:
    return parse_spec(text)


@lru_cache(maxsize=1)
def _scratch() -> str:
    memory = Path("/dev/shm")
    kept = tempfile.TemporaryDirectory(prefix="cdr-hostile-", dir=memory if memory.is_dir() else None)
    _kept.append(kept)
    return kept.name


_kept: list[tempfile.TemporaryDirectory[str]] = []
"""Removed when the process ends."""
