"""What the source says must be in the output: per virtual channel, without what the receipt says was left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from cdr_core.audit.independent.checkpoint import Channel, Checkpoint, require_exchanges
from cdr_core.audit.independent.claims import Claims, Quarantine
from cdr_core.audit.independent.digests import Expected, expected_raw, expected_values
from cdr_core.audit.independent.framing import NO_ELEMENTS, Elements
from cdr_core.audit.independent.key_evidence import KeyEvidence
from cdr_core.audit.independent.placement import ends_of
from cdr_core.audit.independent.report import Difference, Kind
from cdr_core.audit.independent.rows import Reading
from cdr_core.audit.independent.spec import Exchange


@dataclass(frozen=True, slots=True)
class SourceChannel:
    """``expected`` must be in the output; ``left_out`` readable records are not, and the receipt says so.

    ``note`` is what a person should know about that. ``elements`` are all that had to be recovered, and the first
    ``inputs`` of them begin in input state.
    """

    channel: Channel
    expected: Expected
    left_out: int = 0
    differences: tuple[Difference, ...] = ()
    note: str = ""
    inputs: int = 0
    elements: Elements = NO_ELEMENTS


class Source:
    """The source checkpoint, seen through the job spec and, if there is one, the receipt."""

    def __init__(self, checkpoint: Checkpoint, exchanges: tuple[Exchange, ...], claims: Claims | None) -> None:
        require_exchanges(checkpoint, exchanges)
        self.checkpoint, self.exchanges, self._claims = checkpoint, exchanges, claims
        self.keys = KeyEvidence()

    def channels(self, reading: Reading, raw: bool) -> Iterator[SourceChannel]:
        """Every virtual channel of an exchange; ``raw`` = compared by raw bytes, else by values.

        A damaged channel is an error, unless the receipt says that it is in quarantine from there on.
        """
        ends = ends_of(self.checkpoint, reading.exchange)
        for channel in self.checkpoint.channels(reading.exchange):
            elements = self.checkpoint.elements(reading.exchange, channel)
            quarantine = None if self._claims is None else self._claims.quarantine(channel)
            sound, left_out, differences, note = _before(channel, elements, quarantine)
            self.keys.add(reading, ends, channel, sound)
            found = expected_raw(sound) if raw else expected_values(sound, reading.record, reading.group)
            kept = self._without_dropped(channel, found, sound)
            left_out += len(found.positions) - len(kept.positions)
            inputs = sum(start - 4 < sound.border for start in sound.starts)
            yield SourceChannel(channel, kept, left_out, differences, note, inputs, sound)

    def _without_dropped(self, channel: Channel, found: Expected, elements: Elements) -> Expected:
        dropped = self._claims.dropped(channel) if self._claims is not None else ()
        if not dropped:
            return found
        kept = ~np.isin(found.positions, list(dropped))
        positions = found.positions[kept]
        size = sum(elements.ends[p] - elements.starts[p] for p in positions.tolist())
        groups = None if found.groups is None else found.groups[kept]
        return replace(found, positions=positions, digests=found.digests[kept], bytes=size, groups=groups)


def _before(
    channel: Channel, elements: Elements, quarantine: Quarantine | None
) -> tuple[Elements, int, tuple[Difference, ...], str]:
    """The elements that had to be recovered, how many readable records lie behind them, and what does not fit."""
    if quarantine is None or len(elements.starts) < quarantine.from_pos:
        return elements.whole(), 0, (), ""  # raises also where recovered records cannot be found again
    first = quarantine.from_pos
    sound, behind = elements.before(first), elements.records_from(first)
    differences = []
    begins = sound.ends[-1] if first else 0
    if quarantine.offset != begins:
        what = f"the receipt says that quarantine begins at byte {quarantine.offset}, element {first} is at {begins}"
        differences.append(Difference(Kind.RECEIPT, what, channel=channel))
    if elements.broken is None and quarantine.records not in (None, behind):
        what = f"the receipt says that {quarantine.records} records are in quarantine, there are {behind}"
        differences.append(Difference(Kind.RECEIPT, what, channel=channel))
    note = "" if elements.broken is not None else f"{channel} is in quarantine from element {first} on, but frames"
    return sound, behind, tuple(differences), note and f"{note} into records to its end"
