"""The records that must be in the output: per virtual channel, without those that the receipt lists as left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from cdr_core.verify.checkpoint import Block, Channel, Checkpoint, require_exchanges
from cdr_core.verify.claims import Claims, Quarantine
from cdr_core.verify.digests import Compared, Digests, Longs, as_array, digest, total, value_digest
from cdr_core.verify.fingerprints import fingerprints
from cdr_core.verify.framing import KINDS, Elements, timestamp, value_of
from cdr_core.verify.key_evidence import RECORDS as LOOKED_AT
from cdr_core.verify.key_evidence import KeyEvidence
from cdr_core.verify.placement import ends_of
from cdr_core.verify.report import Difference, Kind, Totals
from cdr_core.verify.rows import Reading
from cdr_core.verify.spec import Exchange

Watch = Callable[[Channel, Elements, int, Sequence[int]], None]
"""Called with a channel, its elements, how many of them begin in input state, and the positions of
recovered records.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """The records of an exchange that must be in the output, ordered by channel and position.

    Of each channel: ``up``, ``down``, ``counts`` (its records), ``inputs`` (its elements that begin in input state) and
    ``others`` (its elements that are no records, by tag). Of each record: its position among all elements of its
    channel, its size, digest and fingerprint, and its key group where it had to be decoded anyway (a table without raw
    bytes), else −1.
    """

    up: Longs
    down: Longs
    counts: Longs
    inputs: Longs
    others: npt.NDArray[np.int32]
    positions: Longs
    sizes: Longs
    digests: Digests
    words: Digests
    groups: Longs

    @classmethod
    def joined(cls, parts: Sequence[Expected]) -> Expected:
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))

    @property
    def numbers(self) -> Longs:
        """Return the channel of each record."""
        return np.repeat(np.arange(len(self.up)), self.counts)

    @property
    def totals(self) -> Totals:
        return Totals(len(self.positions), int(self.sizes.sum()), total(self.digests))

    def find(self, up: Longs, down: Longs) -> Longs:
        """Return the number of each channel; −1 for one that the source does not have."""
        width = max(int(self.down.max(initial=0)), int(down.max(initial=0))) + 1
        keys, wanted = self.up * width + self.down, up * width + down
        index = np.searchsorted(keys, wanted).clip(max=max(len(keys) - 1, 0))
        known = (up >= 0) & (down >= 0) & (up <= self.up.max(initial=-1))
        return np.where(known & (keys[index] == wanted), index, -1) if len(keys) else np.full(len(up), -1)


_0 = np.zeros(0, np.int64)
NOTHING = Expected(_0, _0, _0, _0, np.zeros((0, len(KINDS)), np.int32), _0, _0, as_array([]), as_array([]), _0)


class Source:
    """The source checkpoint, seen through the job spec and, if there is one, the receipt.

    ``left_out`` counts readable records that the receipt lists as left out; ``notes`` are messages for the user about
    them, ``differences`` contradictions.
    """

    def __init__(self, checkpoint: Checkpoint, exchanges: tuple[Exchange, ...], claims: Claims | None) -> None:
        require_exchanges(checkpoint, exchanges)
        self.checkpoint, self.exchanges = checkpoint, exchanges
        self._quarantine = {} if claims is None else claims.quarantine
        self._dropped = {} if claims is None else claims.dropped
        self.keys = KeyEvidence()
        self.left_out = 0
        self.differences: list[Difference] = []
        self.notes: list[str] = []

    def records(self, reading: Reading, compared: Compared, watch: Watch | None = None) -> Expected:
        """Return the records of every virtual channel of an exchange.

        A damaged channel raises, unless the receipt states that it is in quarantine from there on.
        """
        parts = [self._block(block, reading, compared, watch) for block in self.checkpoint.blocks(reading.exchange)]
        return Expected.joined([NOTHING, *parts])

    def _block(self, block: Block, reading: Reading, compared: Compared, watch: Watch | None) -> Expected:
        frames, view = block.frames, np.frombuffer(block.data, np.uint8)
        counts = np.diff(frames.first)
        sound = self._sound(block, counts)
        channel = np.repeat(np.arange(len(counts)), counts)
        position = np.arange(len(channel)) - frames.first[channel]
        kept, tags = position < sound[channel], view[frames.starts] if len(view) else np.zeros(0, np.uint8)
        others = np.zeros((len(counts), len(KINDS)), np.int32)
        np.add.at(others, (channel[kept & (tags > 1)], tags[kept & (tags > 1)]), 1)
        inputs = np.zeros(len(counts), np.int64)
        np.add.at(inputs, channel[kept & (frames.starts - 4 < block.borders[channel])], 1)
        at = np.flatnonzero(kept & (tags <= 1))
        at = at[~self._is_dropped(block, channel[at], position[at])]
        starts, ends, numbers, positions = frames.starts[at], frames.ends[at], channel[at], position[at]
        raws = [block.data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        self._prove_keys(block, reading, numbers, positions, raws)
        words = fingerprints(block.data, starts, ends)
        digests, groups = _digests(raws, words, reading, compared)
        found = Expected(
            *(block.up, block.down, np.bincount(numbers, minlength=len(counts)), inputs, others),
            *(positions, ends - starts, digests, words, groups),
        )
        if watch is not None:
            bounds = np.append(0, np.cumsum(found.counts)).tolist()
            for number in range(len(counts)):
                elements = block.elements(number).before(int(sound[number]))
                recovered = positions[bounds[number] : bounds[number + 1]].tolist()
                watch(block.channel(number), elements, int(inputs[number]), recovered)
        return found

    def _sound(self, block: Block, counts: Longs) -> Longs:
        """Return how many elements of each channel had to be recovered."""
        sound = counts.copy()
        ours = {at: entry for at, entry in self._quarantine.items() if at.exchange == block.exchange}
        quarantined = {number: ours[at] for at in ours for number in _numbers(block, at)}
        for number in sorted({*block.frames.wrong, *block.damaged, *quarantined}):
            entry = quarantined.get(number)
            elements = block.elements(number)
            if entry is None or len(elements.starts) < entry.from_pos:
                elements.whole()  # raises also where recovered records cannot be found again
            else:
                sound[number] = entry.from_pos
                self._leave_out(block.channel(number), elements, entry)
        return sound

    def _leave_out(self, channel: Channel, elements: Elements, entry: Quarantine) -> None:
        first = entry.from_pos
        behind, begins = elements.records_from(first), elements.ends[first - 1] if first else 0
        self.left_out += behind
        if entry.offset != begins:
            what = f"the receipt states that quarantine begins at byte {entry.offset}, element {first} is at {begins}"
            self.differences.append(Difference(Kind.RECEIPT, what, channel=channel))
        if elements.broken is not None:
            return
        if entry.records not in (None, behind):
            what = f"the receipt states that {entry.records} records are in quarantine, there are {behind}"
            self.differences.append(Difference(Kind.RECEIPT, what, channel=channel))
        where = f"{channel} is in quarantine from element {first} on"
        self.notes.append(f"{where}, but frames into records to its end")

    def _is_dropped(self, block: Block, numbers: Longs, positions: Longs) -> npt.NDArray[np.bool_]:
        dropped = np.zeros(len(numbers), bool)
        for at, unwanted in self._dropped.items():
            for number in _numbers(block, at):
                dropped |= (numbers == number) & np.isin(positions, list(unwanted))
        self.left_out += int(dropped.sum())
        return dropped

    def _prove_keys(
        self, block: Block, reading: Reading, numbers: Longs, positions: Longs, raws: Sequence[bytes]
    ) -> None:
        early = np.flatnonzero(positions < LOOKED_AT)
        downs = block.down[numbers[early]].tolist()
        self.keys.add(reading, ends_of(self.checkpoint, reading.exchange), downs, (raws[at] for at in early.tolist()))


def _numbers(block: Block, channel: Channel) -> list[int]:
    """Return the channel's number in the block, if it is there."""
    selected = (block.up == channel.up) & (block.down == channel.down) & (block.exchange == channel.exchange)
    found: list[int] = np.flatnonzero(selected).tolist()
    return found


def _digests(raws: Sequence[bytes], words: Digests, reading: Reading, compared: Compared) -> tuple[Digests, Longs]:
    """Return digest and key group of each record."""
    if compared is Compared.BYTES:
        return as_array(map(digest, raws)), np.full(len(raws), -1)
    digests, groups = [], []
    for each, fingerprint in zip(raws, words.astype(">u8"), strict=True):
        values, row_kind = reading.record.read(value_of(each))
        identity = (fingerprint.tobytes(), len(each)) if compared is Compared.FINGERPRINTS else None
        fields = (values[f.name] for f in reading.record.readable)
        digests.append(value_digest(identity, timestamp(each), row_kind, fields))
        groups.append(-1 if reading.group is None else reading.group(values))
    return as_array(digests), np.array(groups, np.int64)
