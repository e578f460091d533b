"""What a subtask's input has said of its watermark, as a cut keeps it: for its entry, and for whoever goes on from it.

A channel counts if the spill set holds anything of it. As a task's own input does it: the minimum over the active
channels, or over all where none is active; nothing as long as one of them has said nothing. A subtask without any data
holds nobody back: it is idle.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from cdr_core.rescale.other_elements import Last, closing

Channel = tuple[int, int]
"""(gate, new channel)"""

NOTHING_SAID: Mapping[str, Any] = {"channels": [], "watermark": None, "idle": False}
"""Of a subtask that nobody has begun with: everybody waits for it."""


def to_json(with_data: Collection[Channel], said: Mapping[Channel, Last]) -> dict[str, Any]:
    """``with_data``: the channels that count; ``said`` of them so far."""
    counting = [said.get(channel, Last()) for channel in with_data]
    active = [last for last in counting if not last.idle]
    watermark = closing(active or counting).watermark
    channels = [[*channel, last.watermark, last.idle] for channel, last in sorted(said.items())]
    return {"channels": channels, "watermark": watermark, "idle": not active}


def channels(value: Mapping[str, Any]) -> dict[Channel, Last]:
    """By channel, what it had said at the cut."""
    return {(gate, channel): Last(watermark, idle) for gate, channel, watermark, idle in value["channels"]}
