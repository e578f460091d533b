"""The quarantine: bytes of damaged channels, put aside so that they count neither as records nor as nothing.

With ``on_corrupt quarantine`` a channel's records up to the first bad element are recovered. The bytes from there on
lie in the recovery's workspace, below the epoch that found them: one file per channel, as they were in the channel, and
a JSON object beside it that says which channel, from which offset, and why. Result manifests name the files; what a
task wrote that lost against another attempt at its unit has no owner and is swept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from cdr_core.audit.receipt import DroppedRecord, LeftOut, Quarantined
from cdr_core.channels.batch_scan import Scanned
from cdr_core.channels.channel_scan import Seen, salvage_channel
from cdr_core.channels.salvage import Damage, Salvaged
from cdr_core.commit.sinks import sink_for
from cdr_core.commit.sinks.none import NoneSink
from cdr_core.errors import Partial, SpecRefused
from cdr_core.flink.virtual_channel import ChannelBytes
from cdr_core.planning.dropped_records import Ranges
from cdr_core.planning.plan import Plan
from cdr_core.runtime.unit_runner import Job
from cdr_core.runtime.workspace import Workspace, write_json
from cdr_core.storage import join
from cdr_core.storage.atomic_write import making
from cdr_core.targets import Target

FAIL, QUARANTINE = "fail", "quarantine"
ON_CORRUPT = (FAIL, QUARANTINE)
"""What may be done with a damaged channel; the first is the default."""

PARTIAL = "partial"
"""The verdict of a recovery that is published without what was put aside."""

PIECE = 1024 * 1024
"""Bytes copied at once."""


def put_aside(
    job: Job, plan: Plan, number: int, name: str, drops: Ranges = (), seen: Seen | None = None
) -> dict[str, Any]:
    """Scan a channel; if it is damaged, its bytes from there on go to the quarantine and are described in the result.

    ``name`` is the attempt's own, so that two attempts never share a file.
    """
    scanned, salvaged, damage = salvage_channel(plan, number, drops, seen, shown=shows_values(job.target))
    if damage is None:
        return scanned
    planned = plan.channels[number]
    exchange = plan.exchanges[planned.exchange]
    directory = Workspace(job.root).attempt(job.epoch, QUARANTINE)
    file = join(directory, f"channel-{number:05d}-{name}")
    described = {
        "version": 1,
        "exchange": exchange.name,
        "up": planned.up,
        "down": planned.down,
        "gate": exchange.gate,
        "from_pos": _elements(scanned),
        **_written(salvaged, damage, file, job.makes),
        "file": file,
    }
    write_json(f"{file}.json", described)
    return {**scanned, "quarantine": described}


def shows_values(target: str) -> bool:
    """Whether a target is made of values; a checkpoint and ``none:raw`` take a record's bytes as they are."""
    parsed = Target.parse(target)
    sink = sink_for(parsed)
    return not (parsed.kind.is_checkpoint or (isinstance(sink, NoneSink) and sink.raw))


def _elements(scanned: Mapping[str, Any]) -> int:
    """How many elements are sound, those included that were left out on request."""
    entry = scanned["entry"]
    dropped = len(scanned.get("dropped", {}).get("positions", ()))
    return int(entry["records"] + sum(entry["others"].values()) + dropped)


def _written(salvaged: Salvaged, damage: Damage, file: str, scratch: Path) -> dict[str, Any]:
    """Write the bytes from the damage to the channel's end."""
    channel = salvaged.channel
    digest = hashlib.sha256()
    with making(file, scratch) as temporary, temporary.open("xb") as target:
        for begin in range(damage.offset, channel.size, PIECE):
            piece = _copied(channel, begin, min(begin + PIECE, channel.size))
            target.write(piece)
            digest.update(piece)
    return {
        "offset": damage.offset,
        "bytes": channel.size - damage.offset,
        "unreadable": salvaged.unreadable,
        "reason": damage.reason,
        "in_value": damage.in_value,
        "next_fits": damage.next_fits,
        "sha256": digest.hexdigest(),
    }


def _copied(channel: ChannelBytes, begin: int, end: int) -> bytes:
    target = np.empty(end - begin, np.uint8)
    channel.copy(begin, end, target)
    return target.tobytes()


def quarantined(scanned: Scanned) -> list[dict[str, Any]]:
    """What `read` put aside, in plan order."""
    channels = sorted(scanned.special, key=lambda channel: int(channel["channel"]))
    return [channel["quarantine"] for channel in channels if "quarantine" in channel]


def directories(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the files are. A phase's result names them, so that they outlive their recovery's other files."""
    return sorted({str(line["file"]).rpartition("/")[0] for line in lines})


def left_out(scanned: Scanned) -> LeftOut:
    """What a proof says of the quarantine (everything but where it is, which differs between attempts), and the records
    that were left out on request.
    """
    names = [field.name for field in fields(Quarantined) if field.name != "records"]
    aside = tuple(Quarantined(**{name: line[name] for name in names}) for line in quarantined(scanned))
    dropped = tuple(
        DroppedRecord(channel["entry"]["exchange"], channel["entry"]["up"], channel["entry"]["down"], position)
        for channel in scanned.special
        for position in channel.get("dropped", {}).get("positions", ())
    )
    return LeftOut(aside, dropped)


def require_whole(recovery: str, verdict: str) -> None:
    """Raise :class:`~cdr_core.errors.Partial` for a recovery that is published without what was put aside."""
    if verdict == PARTIAL:
        raise Partial(
            f"recovery {recovery} is published without what was damaged or to be left out",
            hint=f"run: cdr receipt {recovery}",
        )


def refuse_wrong_spec(plan: Plan, scanned: Scanned) -> None:
    """A type or key that is not the job's looks like damage, in the very first record of many channels, and in the one
    behind it. Real damage hits few records, so that is refused instead of publishing next to nothing.
    """
    exchanges = plan.channels.exchange[scanned.channels["channel"]]
    with_data = np.bincount(exchanges[scanned.channels["size"] > 0], minlength=len(plan.exchanges))
    for number, exchange in enumerate(plan.exchanges):
        mine = [each for each in scanned.special if plan.channels.exchange[each["channel"]] == number]
        wrong = [channel["quarantine"] for channel in mine if _fails_at_once(channel)]
        channels = int(with_data[number])
        if channels == len(wrong) == 1 or (len(wrong) > 1 and 2 * len(wrong) >= channels):
            first = wrong[0]
            raise SpecRefused(
                f"of {len(wrong)} of {channels} channels of exchange {exchange.name} not even the first records fit:"
                f" {first['reason']}",
                hint="check the record type and the key in the job spec; if they are right, leave such a record out "
                f"with --drop-records {exchange.name}:{first['up']}:{first['down']}:{first['from_pos']}",
            )


def _fails_at_once(channel: Mapping[str, Any]) -> bool:
    """Its first record does not fit, nor does the second, if there is one."""
    if "quarantine" not in channel or "dropped" in channel:
        return False
    line = channel["quarantine"]
    return bool(line["in_value"] and not line["next_fits"] and channel["entry"]["records"] == 0)
