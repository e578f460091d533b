"""A checkpoint's virtual channels: input state of (down ← up) in file order, then output state of (up → down)."""

from __future__ import annotations

import hashlib
import mmap
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from cdr_core.audit.independent.framing import Elements, find_elements
from cdr_core.audit.independent.handles import Stream
from cdr_core.audit.independent.metadata import Handle, Metadata, Operator, Place, read_metadata
from cdr_core.audit.independent.spec import Exchange
from cdr_core.errors import Corrupt, CorruptChannelState, SpecRefused, Unreadable, Where
from cdr_core.storage import join, storage_for

_PIECE = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, order=True)
class Channel:
    """A virtual channel by its exchange and its old upstream and downstream subtask."""

    exchange: str
    up: int
    down: int

    def __str__(self) -> str:
        return f"{self.exchange} {self.up}→{self.down}"


class Checkpoint:
    """An open checkpoint; files stay mapped until it is closed. Everything damaged is a ``Corrupt`` with its place."""

    def __init__(self, directory: str) -> None:
        self.directory = plain_address(directory).rstrip("/").removesuffix("/_metadata")
        address = join(self.directory, "_metadata")
        self._storage = storage_for(address)
        data = self._storage.read(address)
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.metadata: Metadata = read_metadata(data, address)
        self._files: dict[str, mmap.mmap | bytes] = {}
        self._open = ExitStack()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def channels(self, exchange: Exchange) -> list[Channel]:
        """Every virtual channel of the exchange that has state on either side, in order."""
        upstream, downstream = self.ends(exchange)
        near = self._neighbours(exchange)
        received = [at for at in downstream.inputs if at.a == exchange.gate]
        sent = [at for at in upstream.outputs if at.a == exchange.partition]
        found = {(near.ups[at.subtask][at.b] if near else at.b, at.subtask) for at in received}
        found |= {(at.subtask, near.downs[at.subtask][at.b] if near else at.b) for at in sent}
        for up, down in sorted(found):
            if up >= upstream.parallelism or down >= downstream.parallelism:
                raise CorruptChannelState(
                    f"a channel from subtask {up} to {down} is beyond the parallelism of its ends",
                    where=Where(checkpoint=self.directory, exchange=exchange.name),
                    hint="check that the spec connects the right operators, gates and partitions",
                )
        return [Channel(exchange.name, up, down) for up, down in sorted(found)]

    def ends(self, exchange: Exchange) -> tuple[Operator, Operator]:
        """Upstream and downstream operator."""
        return self.metadata.operator(exchange.upstream), self.metadata.operator(exchange.downstream)

    def unclaimed(self, exchanges: tuple[Exchange, ...]) -> list[str]:
        """Channel state that belongs to none of the exchanges: nobody would notice if it were lost."""
        claimed = set()
        for exchange in exchanges:
            upstream, downstream = self.ends(exchange)
            claimed |= {(downstream.id, "gate", exchange.gate), (upstream.id, "partition", exchange.partition)}
        present = set()
        for o in self.metadata.operators:
            for word, side in (("gate", o.inputs), ("partition", o.outputs)):
                left = {at: handle for at, handle in side.items() if (o.id, word, at.a) not in claimed}
                present |= {(o.id, word, at.a) for at, handle in left.items() if self._holds_bytes(handle)}
        return [f"operator {id_}, {word} {number}" for id_, word, number in sorted(present)]

    def _holds_bytes(self, handle: Handle) -> bool:
        """Chunks of no bytes are common: buffers that were drained already. What cannot be read holds what it says."""
        data, broken = self._bytes(handle, Where(checkpoint=self.directory))
        return bool(data) or (broken is not None and handle.size > 4 * len(handle.offsets))

    def elements(self, exchange: Exchange, channel: Channel) -> Elements:
        """The channel's elements up to its end, or up to the first damage, which ``broken`` then names."""
        upstream, downstream = self.ends(exchange)
        name = downstream.uid or downstream.name or downstream.id
        where = Where(self.directory, exchange.name, name, channel.down, exchange.gate, channel.up)
        near = self._neighbours(exchange)
        source = near.ups[channel.down].index(channel.up) if near else channel.up
        goal = near.downs[channel.up].index(channel.down) if near else channel.down
        received = downstream.inputs.get(Place(channel.down, exchange.gate, source))
        sent = upstream.outputs.get(Place(channel.up, exchange.partition, goal))
        before, hole = self._bytes(received, where)
        after, second_hole = self._bytes(sent, where) if hole is None else (b"", hole)
        found = find_elements(before + after, len(before), where)
        return found if hole is None and second_hole is None else replace(found, broken=hole or second_hole)

    def _neighbours(self, exchange: Exchange) -> Neighbours | None:
        """Who is connected with whom where channels are numbered by that; ``None`` where by all of the other end."""
        if exchange.partitioner not in ("forward", "rescale"):
            return None
        upstream, downstream = self.ends(exchange)
        near = pointwise(upstream.parallelism, downstream.parallelism)
        received = [at for at in downstream.inputs if at.a == exchange.gate]
        sent = [at for at in upstream.outputs if at.a == exchange.partition]
        fits = all(at.b < len(near.ups.get(at.subtask, ())) for at in received)
        return near if fits and all(at.b < len(near.downs.get(at.subtask, ())) for at in sent) else None

    def _bytes(self, handle: Handle | None, where: Where) -> tuple[bytes, Corrupt | None]:
        """One side's bytes up to its end, or up to the first that cannot be read, and why."""
        parts: list[bytes] = []
        try:
            parts.extend(self._chunks(handle, where))
        except Corrupt as error:
            return b"".join(parts), error
        return b"".join(parts), None

    def _chunks(self, handle: Handle | None, where: Where) -> Iterator[bytes]:
        if handle is None or not handle.offsets:
            return
        stream = handle.stream
        data = self.data(stream)
        start = stream.start
        end = len(data) if stream.length is None else min(start + stream.length, len(data))
        if start < 0 or data[start : start + 4] != b"\0\0\0\0":
            raise self._damaged("a channel-state file is cut short or does not begin as one", where, start)
        found = 0
        for offset in handle.offsets:
            at = start + offset
            if offset < 4 or at + 4 > end:
                raise self._damaged("a chunk lies beyond the end of its file", where, offset)
            length = int.from_bytes(data[at : at + 4], "big", signed=True)
            if length < 0:
                raise self._damaged(f"a chunk has a length of {length} bytes", where, offset)
            yield data[at + 4 : min(at + 4 + length, end)]
            if at + 4 + length > end:
                raise self._damaged(f"a chunk of {length} bytes does not fit into its file", where, offset)
            found += 4 + length
        # Flink only notes the size, but a chunk whose length field shrank to a record's border shows nowhere else.
        # Inline state counts its header too; a size that the stream cannot hold says nothing.
        if stream.inline is None and found < handle.size <= end - start - 4:
            what = f"the chunks of a channel have {found} bytes, its handle says {handle.size}"
            raise self._damaged(what, where, handle.offsets[0])

    def _damaged(self, what: str, where: Where, offset: int) -> CorruptChannelState:
        hint = "use a checkpoint that is complete"
        return CorruptChannelState(what, where=replace(where, offset=offset), hint=hint)

    def data(self, stream: Stream) -> mmap.mmap | bytes:
        """All bytes of the file that the stream is in, or its own."""
        if stream.inline is not None:
            return stream.inline
        address = self.address(stream)
        if address not in self._files:
            self._files[address] = self._map(address)
        return self._files[address]

    def address(self, stream: Stream) -> str:
        """Where the file of a stream is that is not inline."""
        return join(self.directory, stream.path) if stream.relative else self._where_now(stream.path)

    def _where_now(self, path: str) -> str:
        """An absolute path; if nothing is there, the same file beside the checkpoint, which may have been moved."""
        written = plain_address(path)
        parts = written.split("/")
        marks = [n for n, part in enumerate(parts) if part in ("taskowned", "shared") or re.fullmatch(r"chk-\d+", part)]
        if not marks or _is_there(written):
            return written
        above = str(Path(self.directory).absolute().parent)
        if "://" in self.directory:
            above = self.directory.rpartition("/")[0]
        own = parts[marks[-1]] == f"chk-{self.metadata.checkpoint_id}"  # its directory may have another name by now
        moved = join(self.directory, *parts[marks[-1] + 1 :]) if own else join(above, *parts[marks[-1] :])
        return moved if _is_there(moved) else written

    def _map(self, address: str) -> mmap.mmap | bytes:
        """Pages of a mapped file come and go with the kernel's cache; a remote one is fetched once, to a local file."""
        file = self._open.enter_context(_fetched(address) if "://" in address else _opened(Path(address)))
        size = file.seek(0, 2)
        return self._open.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if size else b""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """By subtask, the subtasks of the other end that it is connected with, in the order of its channels."""

    ups: dict[int, list[int]]
    downs: dict[int, list[int]]


def pointwise(ups: int, downs: int) -> Neighbours:
    """As Flink connects subtasks of a forward or rescale exchange: the smaller end deals out the larger one evenly."""
    if ups >= downs:
        pairs = [(up, down) for down in range(downs) for up in range(down * ups // downs, (down + 1) * ups // downs)]
    else:
        bounds = [(up * downs + ups - 1) // ups for up in range(ups + 1)]
        pairs = [(up, down) for up in range(ups) for down in range(bounds[up], bounds[up + 1])]
    near = Neighbours({}, {})
    for up, down in pairs:
        near.ups.setdefault(down, []).append(up)
        near.downs.setdefault(up, []).append(down)
    return near


def plain_address(address: str) -> str:
    """A local address as a path, whichever way it is written; others as they are."""
    return "/" + address.removeprefix("file:").lstrip("/") if address.startswith("file:") else address


def _is_there(address: str) -> bool:
    if "://" not in address:
        return Path(address).is_file()
    return address.startswith(("s3://", "s3a://", "s3n://", "s3p://")) and storage_for(address).exists(address)


def _opened(path: Path) -> IO[bytes]:
    if not path.is_file():
        raise Unreadable(f"{path} does not exist", hint="use a checkpoint that is complete")
    return path.open("rb")


@contextmanager
def _fetched(address: str) -> Iterator[IO[bytes]]:
    storage = storage_for(address)
    found = storage.stat(address)
    with tempfile.TemporaryFile() as file:
        for at in range(0, found.size, _PIECE):
            file.write(storage.read(address, at, min(_PIECE, found.size - at), tag=found.tag))
        file.flush()
        yield file


def require_exchanges(checkpoint: Checkpoint, exchanges: tuple[Exchange, ...]) -> None:
    """Both ends of every exchange exist, and all channel state belongs to one; refused otherwise."""
    if left := checkpoint.unclaimed(exchanges):
        raise SpecRefused(
            f"the checkpoint has in-flight records that no exchange of the spec names: {left[0]}",
            where=Where(checkpoint=checkpoint.directory),
            hint="add the exchange to the job spec, or what is lost there would not be noticed",
        )
