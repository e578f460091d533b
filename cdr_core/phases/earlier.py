"""What an earlier version left, in terms of this one.

Ledgers were a value per line. A cut said which bytes of its spill set were still to come; sets are made again
in the present format, so what counts is how many elements had been delivered.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cdr_core.audit.ledger import KIND_NAMES, Ledger, Tally, join_ledgers, require_equal
from cdr_core.commit.committable import PreparedFile
from cdr_core.drain.remaining import Remaining
from cdr_core.drain.watermarks import UNKNOWN, ChannelWatermarks, InputWatermark
from cdr_core.errors import CdrError, Refused
from cdr_core.kernels import fingerprint
from cdr_core.phases.draining.snapshots import Cut
from cdr_core.phases.ledgers import line_key
from cdr_core.spill import segments
from cdr_core.spill.earlier import set_of_version_2
from cdr_core.spill.sets import SpillSet
from cdr_core.storage import storage_for

if TYPE_CHECKING:
    from cdr_core.metadata import CommitLogEntry
    from cdr_core.metadata.values import UnitResult
    from cdr_core.phases.driver import Drive
    from cdr_core.rescale.plan import Plan


def cut_of_version_1(plan: Plan, subtask: int, position: str, body: Mapping[str, Any]) -> Cut:
    """A cut, with the files that were prepared for it alone; one whose spill set is gone cannot be understood any
    more.
    """
    columns = None
    if body["remaining"] is None or not body["remaining"].get("whole"):
        lines, ledger = _delivered(plan, subtask, body), ledger_of_entries(plan, body["ledger"])
        found = {"delivered_lines": np.array(sorted(lines)), "delivered": np.array([lines[n] for n in sorted(lines)])}
        watermarks = ChannelWatermarks(plan, np.zeros(0, np.int64))
        watermarks.put(body.get("said", {"channels": ()})["channels"], subtask)
        columns = {**found, **ledger.to_columns(), **watermarks.to_columns()}
    files = tuple(PreparedFile.from_json(file) for file in body["files"])
    return Cut(position, body["manifest"], files, _watermark(body), columns)


def finished_cut_of_version_1(plan: Plan, row: UnitResult) -> Cut:
    """The cut of a subtask that an earlier version drained to the end, without its files: rows have those."""
    ledger = ledger_of_entries(plan, row.result["ledger"])
    return Cut("finished", row.result["manifest"], (), _watermark(row.result), ledger.to_columns(), final=True)


def _watermark(value: Mapping[str, Any]) -> InputWatermark:
    return InputWatermark(value["said"]["watermark"], value["said"]["idle"]) if "said" in value else UNKNOWN


def _delivered(plan: Plan, subtask: int, body: Mapping[str, Any]) -> Counter[int]:
    """By line, how many elements had been delivered."""
    try:
        manifest = json.loads(storage_for(body["manifest"]).read(body["manifest"]))
        spill_set = segments.SpillSet.from_json(manifest)
    except CdrError as error:
        raise Refused(
            f"a recovery checkpoint of an earlier version refers to a spill set that is gone ({error.what})",
            hint="finish the recovery with that version, or start over: run the same command with --replace",
        ) from error
    done = Counter({number: segment.records for number, segment in enumerate(spill_set.segments)})
    if body["remaining"] is not None:
        for part in Remaining.from_json(body["remaining"]).parts(spill_set):
            done[part.segment] = body["frames_done"].get(str(part.segment), 0)
    found: Counter[int] = Counter()
    for number, count in done.items():
        channel = spill_set.segments[number].virtual_channel
        owner = subtask - int(plan.channels.owner_first[channel])
        found[int(plan.channels.line_first[channel]) + owner] += count
    return +found


def ledger_of_entries(plan: Plan, entries: Sequence[Mapping[str, Any]]) -> Ledger:
    """A ledger as earlier versions wrote it: a value per line."""
    names = {exchange.name: number for number, exchange in enumerate(plan.exchanges)}
    keys = zip(plan.channels.exchange.tolist(), plan.channels.up.tolist(), plan.channels.down.tolist(), strict=True)
    numbers = {key: number for number, key in enumerate(keys)}
    indexes = [subtask.index for subtask in plan.subtasks]
    rows = []
    for entry in entries:
        number = numbers[names[entry["exchange"]], entry["up"], entry["down"]]
        line = number
        if entry["new_down"] is not None:
            first = int(plan.channels.owner_first[number])
            line = int(plan.channels.line_first[number]) + entry["new_down"] - indexes[first]
        rows.append((line, entry))
    return join_ledgers([_row(line, entry) for line, entry in rows])


def adopted_proof(drive: Drive, entry: CommitLogEntry | None, name: str, ledger: Ledger) -> dict[str, Any] | None:
    """The proof that an earlier version stored before it began this very commit, if what it says of the ledger is true
    of this one: the target may show the commit with its SHA-256. ``None`` = there is none.

    ``entry`` is the commit's entry in the log, if it was begun.
    """
    stored = None if entry is None else drive.repository.proof(drive.recovery.id, entry.proof_sha256)
    proof: dict[str, Any] = json.loads(stored.body) if stored is not None else {}
    if proof.get("version") != 1:
        return None
    key = line_key(drive.plan)
    require_equal("commit", ledger_of_entries(drive.plan, proof["ledgers"][name]), ledger.without_others(), key)
    return proof


def spill_set_of_version_2(plan: Plan, value: Mapping[str, Any]) -> SpillSet:
    """A set that an earlier version left."""
    subtask = value["subtask"]
    channels = plan.channels
    return set_of_version_2(
        value,
        lambda numbers: channels.line_first[numbers] + subtask - channels.owner_first[numbers],
        lambda entries: ledger_of_entries(plan, entries),
    )


def accounts_of(plan: Plan, lines: Sequence[Mapping[str, Any]]) -> tuple[Ledger, Ledger]:
    """Per channel: other elements that stay somewhere, and that leave the stream."""
    nothing = {"fingerprint": "0" * 32, "chain": "0" * 16, "records": 0, "bytes": 0}
    kept = [_row(line["channel"], {**nothing, "others": line["kept"]}) for line in lines]
    left = [
        _row(line["channel"], {**nothing, "others": line[name]}) for line in lines for name in ("merged", "dropped")
    ]
    return join_ledgers(kept), join_ledgers(left)


def _row(line: int, entry: Mapping[str, Any]) -> Ledger:
    numbers = {name: kind for kind, name in KIND_NAMES.items()}
    kinds = np.zeros((1, len(KIND_NAMES) + 2), np.int64)
    for name, count in entry["others"].items():
        kinds[0, numbers[name]] = count
    sums = np.array([Tally.from_json(entry).to_fold()], np.uint64).reshape(1, fingerprint.FOLD_COLUMNS)
    return Ledger.of(np.array([line]), sums, kinds)
