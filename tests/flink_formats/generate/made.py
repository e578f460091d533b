"""Makes checkpoints through the shell's own command, and reads them back through our readers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdr_core.channels.channel_source import open_checkpoint
from cdr_core.channels.element_reader import element_batches
from cdr_core.cli.generate import generate
from cdr_core.inspection.checkpoint_view import inspect_checkpoint
from cdr_core.planning.job_spec import parse_spec
from cdr_core.planning.parallelism import parse_parallelism
from cdr_core.planning.plan import Plan, make_plan


def exchange(
    name: str, up: str, down: str, record: str, *, gate: int = 0, partition: int = 0, how: str = "hash"
) -> str:
    """One exchange of a spec; hash exchanges are keyed by the first field."""
    key = "" if how != "hash" else f"\n    key: [{'f0' if record.startswith('TUPLE') else 'id'}]"
    return f"""
  - name: {name}
    upstream: {{operator: {up}, partition: {partition}}}
    downstream: {{operator: {down}, gate: {gate}}}
    partitioner: {how}
    record: "{record}"{key}"""


def spec_of(*exchanges: str) -> str:
    return "job: made\nexchanges:" + "".join(exchanges) + "\n"


@dataclass(frozen=True)
class Made:
    """A generated checkpoint and the spec it was made from."""

    path: Path
    spec: str

    @cached_property
    def plan(self) -> Plan:
        return make_plan(open_checkpoint(str(self.path)), parse_spec(self.spec), parse_parallelism("same"), 1 << 62)

    @cached_property
    def description(self) -> dict[str, Any]:
        """What ``cdr inspect`` says."""
        return inspect_checkpoint(str(self.path), self.spec)

    def channel(self, number: int) -> pa.Table:
        """The elements of a virtual channel."""
        return pa.Table.from_batches(list(element_batches(self.plan, number)))

    def tables(self) -> Iterator[tuple[Any, pa.Table]]:
        """Every virtual channel with its elements."""
        for number, channel in enumerate(self.plan.channels):
            yield channel, self.channel(number)

    def chunk_lengths(self) -> list[int]:
        return [length for _, _, length in self.chunks()]

    def chunks(self) -> Iterator[tuple[Any, int, int]]:
        """(channel, offset, length) of every chunk, sorted by file and offset."""
        from cdr_core.flink.channel_state import read_chunk_extents
        from cdr_core.flink.checkpoint import InlineLocation
        from cdr_core.flink.metadata import Side

        checkpoint = open_checkpoint(str(self.path))
        found = []
        for operator in checkpoint.metadata.operators:
            for side in Side:
                for at, piece in checkpoint.channels(operator, side).items():
                    place = checkpoint.resolve(piece.delegate)
                    uri = "" if isinstance(place, InlineLocation) else place.uri
                    data = place.data if isinstance(place, InlineLocation) else Path(uri).read_bytes()
                    _, lengths = read_chunk_extents(data, piece.offsets)
                    owner = (uri, operator.label, side, at)
                    found += [(owner, at_byte, int(n)) for at_byte, n in zip(piece.offsets, lengths, strict=True)]
        yield from sorted(found, key=lambda chunk: (chunk[0][0], chunk[1]))


def make(path: Path, spec: str, parallelism: str = "3", size: str = "100kB", **options: Any) -> Made:
    generate(str(path), spec, parallelism, size, **options)
    return Made(path, spec)
