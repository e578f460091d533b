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

import numpy as np

from cdr_core.errors import Corrupt, CorruptChannelState, SpecRefused, Unreadable, Where
from cdr_core.storage import join, storage_for
from cdr_core.verify.channel_handles import Handle
from cdr_core.verify.framing import Elements, Frames, Longs, broken_at, find_frames
from cdr_core.verify.handles import Stream
from cdr_core.verify.links import Links, links_of
from cdr_core.verify.metadata import Metadata, Operator, read_metadata
from cdr_core.verify.spec import Exchange

_PIECE = 16 * 1024 * 1024
BLOCK_BYTES, BLOCK_CHANNELS = 16 * 1024 * 1024, 65_536
"""Channels are read in blocks of up to so many bytes and channels (a channel is never divided)."""


@dataclass(frozen=True, slots=True, order=True)
class Channel:
    """A virtual channel by its exchange and its old upstream and downstream subtask."""

    exchange: str
    up: int
    down: int

    def __str__(self) -> str:
        return f"{self.exchange} {self.up}→{self.down}"


Damaged = dict[int, Corrupt]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Consecutive channels of an exchange: channel c of ``up[c]`` and ``down[c]`` is ``data[begins[c]:begins[c + 1]]``.

    ``borders`` are the offsets at which output state begins; ``damaged`` maps a channel to the error that cut it short.
    """

    exchange: str
    up: Longs
    down: Longs
    data: bytes
    begins: Longs
    borders: Longs
    frames: Frames
    damaged: Damaged
    where: Where

    @classmethod
    def of(
        cls, where: Where, up: Longs, down: Longs, data: bytes, begins: list[int], borders: list[int], damaged: Damaged
    ) -> Block:
        bounds = np.array(begins, np.int64)
        frames = find_frames(data, bounds)
        return cls(str(where.exchange), up, down, data, bounds, np.array(borders, np.int64), frames, damaged, where)

    def channel(self, number: int) -> Channel:
        return Channel(self.exchange, int(self.up[number]), int(self.down[number]))

    def elements(self, number: int) -> Elements:
        """Return the elements of one channel, with offsets in its own bytes."""
        begin, end = self.begins[number : number + 2].tolist()
        rows = slice(*self.frames.first[number : number + 2].tolist())
        starts, ends = ((each[rows] - begin).tolist() for each in (self.frames.starts, self.frames.ends))
        where = replace(self.where, subtask=int(self.down[number]), channel=int(self.up[number]))
        broken = broken_at(self.frames.wrong.get(number, ""), ends[-1] if ends else 0, where)
        border = int(self.borders[number]) - begin
        return Elements(self.data[begin:end], starts, ends, border, self.damaged.get(number, broken))


class Checkpoint:
    """An open checkpoint; its files stay mapped until it is closed. Damage raises ``Corrupt`` with its place."""

    def __init__(self, directory: str) -> None:
        self.directory = plain_address(directory).rstrip("/").removesuffix("/_metadata")
        address = join(self.directory, "_metadata")
        self._storage = storage_for(address)
        data = self._storage.read(address)
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.metadata: Metadata = read_metadata(data, address)
        self._files: dict[str, mmap.mmap | bytes] = {}
        self._streams: dict[Stream, mmap.mmap | bytes] = {}
        self._open = ExitStack()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def links(self, exchange: Exchange) -> Links:
        """Return every virtual channel of the exchange that has state on either side, in order."""
        return links_of(*self.ends(exchange), exchange, self.directory)

    def channels(self, exchange: Exchange) -> list[Channel]:
        """Return the channels of :meth:`links` one by one."""
        links = self.links(exchange)
        return [Channel(exchange.name, *ends) for ends in zip(links.up.tolist(), links.down.tolist(), strict=True)]

    def ends(self, exchange: Exchange) -> tuple[Operator, Operator]:
        """Return the upstream and the downstream operator."""
        return self.metadata.operator(exchange.upstream), self.metadata.operator(exchange.downstream)

    def unclaimed(self, exchanges: tuple[Exchange, ...]) -> list[str]:
        """Return channel state that belongs to none of the exchanges: its loss would go unnoticed."""
        claimed = set()
        for exchange in exchanges:
            upstream, downstream = self.ends(exchange)
            claimed |= {(downstream.id, "gate", exchange.gate), (upstream.id, "partition", exchange.partition)}
        present = set()
        for o in self.metadata.operators:
            for word, side in (("gate", o.inputs), ("partition", o.outputs)):
                for a in {*np.unique(side.a).tolist()}:
                    rows = np.flatnonzero(side.a == a) if (o.id, word, a) not in claimed else np.zeros(0, np.int64)
                    present |= {(o.id, word, a) for handle in side.take(rows) if handle and self._holds_bytes(handle)}
        return [f"operator {id_}, {word} {number}" for id_, word, number in sorted(present)]

    def _holds_bytes(self, handle: Handle) -> bool:
        """Return whether a chunk has bytes; Flink often stores empty ones. A handle that cannot be read counts as
        having some.
        """
        data, broken = self._bytes(handle, Where(checkpoint=self.directory))
        return bool(data) or (broken is not None and handle.size > 4 * len(handle.offsets))

    def elements(self, exchange: Exchange, channel: Channel) -> Elements:
        """Return the channel's elements up to its end, or up to the first damage, which ``broken`` then names."""
        links = self.links(exchange)
        found = np.flatnonzero((links.up == channel.up) & (links.down == channel.down))
        return next(self._blocks(exchange, links, found)).elements(0)

    def blocks(self, exchange: Exchange) -> Iterator[Block]:
        """Yield all channels of the exchange, in order."""
        links = self.links(exchange)
        return self._blocks(exchange, links, np.arange(len(links.up)))

    def _blocks(self, exchange: Exchange, links: Links, numbers: Longs) -> Iterator[Block]:
        upstream, downstream = self.ends(exchange)
        name = downstream.uid or downstream.name or downstream.id
        where = Where(self.directory, exchange.name, name, gate=exchange.gate)
        done = 0
        while done < len(numbers):
            some = numbers[done : done + BLOCK_CHANNELS]
            received, sent = downstream.inputs.take(links.received[some]), upstream.outputs.take(links.sent[some])
            parts: list[bytes] = []
            begins, borders, size = [0], [], 0
            damaged: Damaged = {}
            for number, handles in enumerate(zip(received, sent, strict=True)):
                before, hole = self._bytes(handles[0], where)
                after, hole = self._bytes(handles[1], where) if hole is None else (b"", hole)
                if hole is not None:
                    damaged[number] = self._placed(hole, int(links.up[some[number]]), int(links.down[some[number]]))
                parts += (before, after)
                borders.append(size + len(before))
                size += len(before) + len(after)
                begins.append(size)
                if size >= BLOCK_BYTES:
                    break
            rows = some[: len(borders)]
            done += len(rows)
            yield Block.of(where, links.up[rows], links.down[rows], b"".join(parts), begins, borders, damaged)

    def _bytes(self, handle: Handle | None, where: Where) -> tuple[bytes, Corrupt | None]:
        """Return one side's bytes up to its end or the first unreadable byte, and the error of that byte."""
        parts: list[bytes] = []
        try:
            if handle is not None and handle.offsets:
                parts.extend(self._chunks(handle, where))
        except Corrupt as error:
            return b"".join(parts), error
        return b"".join(parts), None

    def _chunks(self, handle: Handle, where: Where) -> Iterator[bytes]:
        stream = handle.stream
        data = self.data(stream)
        start = stream.start
        end = len(data) if stream.length is None else min(start + stream.length, len(data))
        if start < 0 or data[start : start + 4] != b"\0\0\0\0":
            what = "a channel-state file is cut short or does not begin as one"
            raise self._damaged(what, replace(where, offset=start))
        found = 0
        for offset in handle.offsets:
            at = start + offset
            if offset < 4 or at + 4 > end:
                raise self._damaged("a chunk lies beyond the end of its file", replace(where, offset=offset))
            length = int.from_bytes(data[at : at + 4], "big", signed=True)
            if length < 0:
                raise self._damaged(f"a chunk has a length of {length} bytes", replace(where, offset=offset))
            yield data[at + 4 : min(at + 4 + length, end)]
            if at + 4 + length > end:
                what = f"a chunk of {length} bytes does not fit into its file"
                raise self._damaged(what, replace(where, offset=offset))
            found += 4 + length
        # Flink only records the size, but a chunk whose length field shrank to a record's border shows nowhere else.
        # The size of inline state includes its header; a size larger than the stream proves nothing.
        if stream.inline is None and found < handle.size <= end - start - 4:
            what = f"the chunks of a channel have {found} bytes, its handle states {handle.size}"
            raise self._damaged(what, replace(where, offset=handle.offsets[0]))

    def _placed(self, hole: Corrupt, up: int, down: int) -> Corrupt:
        """Return the error with its channel; an error of a whole file is returned as it is."""
        whole = hole.where.exchange is None
        return hole if whole else self._damaged(hole.what, replace(hole.where, subtask=down, channel=up))

    def _damaged(self, what: str, where: Where) -> CorruptChannelState:
        return CorruptChannelState(what, where=where, hint="use a checkpoint that is complete")

    def data(self, stream: Stream) -> mmap.mmap | bytes:
        """Return all bytes of the stream's file, or of the inline stream itself."""
        if stream.inline is not None:
            return stream.inline
        if stream not in self._streams:
            address = self.address(stream)
            if address not in self._files:
                self._files[address] = self._map(address)
            self._streams[stream] = self._files[address]
        return self._streams[stream]

    def address(self, stream: Stream) -> str:
        """Return the address of a stream's file; the stream must not be inline."""
        return join(self.directory, stream.path) if stream.relative else self._where_now(stream.path)

    def _where_now(self, path: str) -> str:
        """Return an absolute path; if nothing is there, the same file beside the checkpoint, which may have
        been moved.
        """
        written = plain_address(path)
        parts = written.split("/")
        marks = [n for n, part in enumerate(parts) if part in ("taskowned", "shared") or re.fullmatch(r"chk-\d+", part)]
        if not marks or _is_there(written):
            return written
        above = str(Path(self.directory).absolute().parent)
        if "://" in self.directory:
            above = self.directory.rpartition("/")[0]
        inside = parts[marks[-1]] == f"chk-{self.metadata.checkpoint_id}"  # its directory may have another name by now
        moved = join(self.directory, *parts[marks[-1] + 1 :]) if inside else join(above, *parts[marks[-1] :])
        return moved if _is_there(moved) else written

    def _map(self, address: str) -> mmap.mmap | bytes:
        """Map a file: its pages stay in the kernel's cache. A remote file is fetched once, to a local file."""
        file = self._open.enter_context(_fetched(address) if "://" in address else _opened(Path(address)))
        size = file.seek(0, 2)
        return self._open.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)) if size else b""


def plain_address(address: str) -> str:
    """Return a local address as a path, in whichever form it is given; other addresses are returned as they are."""
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
    """Refuse an exchange without both ends, and channel state that belongs to no exchange."""
    if left := checkpoint.unclaimed(exchanges):
        raise SpecRefused(
            f"the checkpoint has in-flight records that no exchange of the spec names: {left[0]}",
            where=Where(checkpoint=checkpoint.directory),
            hint="add the exchange to the job spec, or what is lost there would not be noticed",
        )
