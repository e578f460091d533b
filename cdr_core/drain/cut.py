"""What a checkpoint during recovery holds of one subtask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cdr_core.drain.channel import Key, RecoveredChannel
from cdr_core.drain.inbox import Inbox
from cdr_core.drain.remaining import Remaining, Slice, merged
from cdr_core.errors import IllegalState, Where
from cdr_core.spill.segments import SpillSet


@dataclass(frozen=True, slots=True)
class Cut:
    """``remaining``: per channel, in order, what a resume has to deliver. ``live``: live pages that the checkpoint
    overtakes, of channels that have left recovery; a channel is never in both.
    """

    checkpoint: int
    remaining: Remaining
    live: Mapping[Key, tuple[bytes, ...]] = field(default_factory=dict)


def build(
    checkpoint: int, half_records: Sequence[Slice], queued: Sequence[Slice], tail: Remaining, inbox: Inbox
) -> Cut:
    """Join the parts in the order in which they are to be delivered: (a) half records, (b) queues, (c) tail."""
    live = {key: channel.live.waiting() for key, channel in inbox.channels.items() if not channel.in_recovery}
    return Cut(
        checkpoint,
        Remaining(merged((*half_records, *queued, *tail.slices)), tail.cursor),
        {key: pages for key, pages in live.items() if pages},
    )


def require_taken(
    half_records: Sequence[Slice], spill_set: SpillSet | None, channels: Mapping[Key, RecoveredChannel]
) -> None:
    """Half records are the end of what their channel was polled for; anything else would lose or repeat bytes."""
    last: dict[Key, Slice] = {}
    for part in half_records:
        if spill_set is None or not 0 <= part.segment < len(spill_set.segments):
            raise IllegalState(f"a half record lies in segment {part.segment}, which the spill set does not have")
        segment = spill_set.segments[part.segment]
        last[segment.gate, segment.channel] = part
    for (gate, index), part in last.items():
        channel = channels.get((gate, index))
        if channel is None or channel.taken_to != (part.segment, part.end):
            raise IllegalState(
                f"a half record ends at byte {part.end} of segment {part.segment}, where the channel was not left",
                where=Where(gate=gate, channel=index),
            )
