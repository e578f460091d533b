"""Copies of a shipped checkpoint with damaged channels."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import numpy as np

from cdr_core.channels import channel_source as source
from cdr_core.channels.channel_source import open_channel, open_checkpoint
from cdr_core.planning.job_spec import parse_spec, read_spec
from cdr_core.planning.parallelism import parse_parallelism
from cdr_core.planning.plan import Plan, make_plan
from tests.support.checkpoints import FixtureCheckpoint

Channel = tuple[int, int]


BAD = (1, 1)
"""The channel (up, down) that single flips damage; its records have several possible owners at parallelism 2."""


class Damaged:
    """A copy of a shipped checkpoint in which bytes can be found by virtual channel and changed."""

    def __init__(self, original: FixtureCheckpoint, to: Path) -> None:
        self.original, self.folder = original, Path(shutil.copytree(original.path, to))
        self.plan = plan_of(str(self.folder), str(original.spec))
        self.numbers = {(c.up, c.down): n for n, c in enumerate(self.plan.channels)}

    def data(self, pair: Channel) -> bytes:
        channel = open_channel(self.plan, self.numbers[pair])
        target = np.empty(channel.size, np.uint8)
        channel.copy(0, channel.size, target)
        return target.tobytes()

    def frames(self, pair: Channel) -> list[int]:
        """Where each element's length field is."""
        data, at, found = self.data(pair), 0, []
        while at < len(data):
            found.append(at)
            at += 4 + struct.unpack_from(">i", data, at)[0]
        return found

    def flip(self, pair: Channel, offset: int, bit: int) -> None:
        """Change one bit of the byte at a logical offset, in whichever file it lies."""
        before = self.data(pair)
        for file in sorted(self.folder.iterdir()):
            whole = bytearray(file.read_bytes())
            # Chunks are long and of random payload: a stretch around the byte is found once.
            for begin in range(max(0, offset - 40), offset + 1):
                at = whole.find(before[begin : begin + 80])
                if file.name != "_metadata" and at >= 0 and offset < begin + 80:
                    whole[at + offset - begin] ^= 1 << bit
                    rewrite(file, bytes(whole))
                    assert self.data(pair)[offset] == before[offset] ^ (1 << bit)
                    return
        raise AssertionError("the byte was not found")


def rewrite(file: Path, data: bytes) -> None:
    """Another file of that name: one that is mapped must not shrink, and what this process has mapped is forgotten."""
    file.unlink()
    file.write_bytes(data)
    source._mapped.cache_clear()


def plan_of(checkpoint: str, spec: str, parallelism: str = "2") -> Plan:
    return make_plan(open_checkpoint(checkpoint), parse_spec(read_spec(spec)), parse_parallelism(parallelism), 1 << 24)


def in_length(copy: Damaged, at: int) -> None:
    copy.flip(BAD, at + 2, 3)


def some_record(copy: Damaged) -> int:
    """The number of an element in the middle that is a record, a few hundred bytes long."""
    data, places = copy.data(BAD), copy.frames(BAD)
    return next(n for n in range(len(places) // 2, len(places)) if data[places[n] + 4] < 2)
