"""What an earlier version left, in terms of this one.

Ledgers were a value per line. A cut listed the bytes of its spill set that were still to come; sets are made again
in the present format, so what counts is how many elements had been delivered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cdr_core.audit.ledger import KIND_NAMES, Ledger, Tally, join_ledgers, require_equal
from cdr_core.kernels import fingerprint
from cdr_core.runtime.phase_ledgers import line_key
from cdr_core.spill.earlier_formats import EarlierSet
from cdr_core.spill.spill_set import SpillSet

if TYPE_CHECKING:
    from cdr_core.metadata import CommitLogEntry
    from cdr_core.planning.plan import Plan
    from cdr_core.runtime.driver import PhaseRun

Longs = npt.NDArray[np.int64]


def lines_of_segments(plan: Plan, subtask: int, spill_set: EarlierSet) -> Longs:
    """By segment, the line whose elements it holds."""
    channel = spill_set.columns["virtual_channel"]
    return plan.channels.line_first[channel] + subtask - plan.channels.owner_first[channel]


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


def adopted_proof(run: PhaseRun, entry: CommitLogEntry | None, name: str, ledger: Ledger) -> dict[str, Any] | None:
    """The proof that an earlier version stored before it began this very commit, if what it says of the ledger is true
    of this one: the target may show the commit with its SHA-256. ``None`` = there is none.

    ``entry`` is the commit's entry in the log, if it was begun.
    """
    stored = None if entry is None else run.repository.proof(run.recovery.id, entry.proof_sha256)
    proof: dict[str, Any] = json.loads(stored.body) if stored is not None else {}
    if proof.get("version") != 1:
        return None
    key = line_key(run.plan)
    require_equal("commit", ledger_of_entries(run.plan, proof["ledgers"][name]), ledger.without_others(), key)
    return proof


def spill_set_of_version_2(plan: Plan, value: Mapping[str, Any]) -> SpillSet:
    """A set that an earlier version left."""
    old = EarlierSet.from_json(value)
    return old.to_present(lines_of_segments(plan, old.subtask, old), ledger_of_entries(plan, old.ledger))


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
