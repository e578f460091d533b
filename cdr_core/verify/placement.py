"""The new subtasks that may get a record: by its key group, or by its old subtask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdr_core.errors import Refused
from cdr_core.verify.checkpoint import Checkpoint
from cdr_core.verify.spec import Exchange

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ends:
    """Old parallelism of an exchange's ends, and the downstream max parallelism."""

    upstream: str
    downstream: str
    old_up: int
    old_down: int
    max_parallelism: int


def ends_of(checkpoint: Checkpoint, exchange: Exchange) -> Ends:
    """Return the ends as the source checkpoint has them."""
    up, down = checkpoint.ends(exchange)
    return Ends(up.id, down.id, up.parallelism, down.parallelism, down.max_parallelism)


def misplaced(
    partitioner: str, ends: Ends, new: int, down: Longs, groups: Longs, new_down: Longs
) -> npt.NDArray[np.bool_]:
    """Return the rows that belong to another new subtask; rows for which that is not known count as right."""
    if partitioner == "hash":
        first = (down * ends.max_parallelism + ends.old_down - 1) // ends.old_down * new // ends.max_parallelism
        last = ((down + 1) * ends.max_parallelism - 1) // ends.old_down * new // ends.max_parallelism
        by_range = (new_down < first) | (new_down > last)
        # Where one new subtask owns the whole range of an old one, the key decides nothing; KeyEvidence reports a wrong
        # key.
        decided = (groups >= 0) & (first != last)
        return np.where(decided, groups * new // ends.max_parallelism != new_down, by_range)
    if new == ends.old_down:
        return np.asarray(new_down != down)
    if partitioner in ("rebalance", "shuffle"):
        return np.asarray(new_down != down % new)
    if partitioner == "global":
        return np.asarray(new_down != 0)
    return np.asarray(new_down >= new)


def parse_parallelism(text: str, checkpoint: Checkpoint, ends: Iterable[Ends]) -> dict[str, int]:
    """Return new parallelism by operator id: ``2`` for all ends of exchanges, ``slow=2,gen=3`` by name, or ``same``."""
    found: dict[str, int] = {}
    for end in ends:
        found |= {end.upstream: end.old_up, end.downstream: end.old_down}
    try:
        if text.strip().isdecimal():
            return dict.fromkeys(found, int(text))
        for part in [] if text.strip() == "same" else text.split(","):
            name, _, number = part.rpartition("=")
            found[checkpoint.metadata.operator(name.strip()).id] = int(number)
    except ValueError:
        raise Refused(f"parallelism {text!r} cannot be read", hint="write 2, slow=2,gen=3 or same") from None
    return found


def wanted_parallelism(text: str, checkpoint: Checkpoint, exchanges: Iterable[Exchange]) -> dict[str, int]:
    """Return :func:`parse_parallelism` for every operator: one number means all as parallel as an end of an
    exchange.
    """
    operators = checkpoint.metadata.operators
    found = {operator.id: operator.parallelism for operator in operators}
    ends = [ends_of(checkpoint, exchange) for exchange in exchanges]
    given = parse_parallelism(text, checkpoint, ends)
    if text.strip().isdecimal():
        exchanged = {number for end in ends for number in (end.old_up, end.old_down)}
        return found | {operator.id: int(text) for operator in operators if operator.parallelism in exchanged}
    return found | given


@dataclass(frozen=True, slots=True)
class Observed:
    """Observed placement of an exchange's rows: one entry per distinct (down, key group, new_down) and (up, new_up)."""

    exchange: Exchange
    ends: Ends
    downs: Longs
    ups: Longs


def infer_parallelism(observed: Iterable[Observed]) -> dict[str, int]:
    """Return the parallelism of each operator that explains most rows, for outputs that state none."""
    wrong: dict[str, npt.NDArray[np.int64]] = {}
    for seen in observed:
        limit = seen.ends.max_parallelism
        for operator, of in ((seen.ends.downstream, _wrong_downs), (seen.ends.upstream, _wrong_ups)):
            scores = np.array([of(seen, new) for new in range(1, limit + 1)], np.int64)
            before = wrong.get(operator)
            if before is None:
                wrong[operator] = scores
            else:
                size = min(len(before), len(scores))
                wrong[operator] = before[:size] + scores[:size]
    return {operator: int(np.argmin(scores)) + 1 for operator, scores in wrong.items()}


def _wrong_downs(seen: Observed, new: int) -> int:
    down, groups, new_down, count = seen.downs.T
    wrong = misplaced(seen.exchange.partitioner, seen.ends, new, down, groups, new_down) | (new_down >= new)
    return int(count[wrong].sum())


def _wrong_ups(seen: Observed, new: int) -> int:
    up, new_up, count = seen.ups.T
    return int(count[(up % new != new_up)].sum())


def checked_fully(exchange: Exchange, ends: Ends, new: Mapping[str, int], key_known: bool) -> str:
    """Return why the owners of an exchange's records could not be checked one by one; empty if they could."""
    if new[ends.downstream] == ends.old_down:
        return ""
    if exchange.partitioner == "hash" and not key_known:
        return f"{exchange.name}: the hash of its key is not known here, owners were checked by key-group range only"
    if exchange.partitioner not in ("hash", "rebalance", "shuffle", "global"):
        return f"{exchange.name}: owners of a {exchange.partitioner} exchange were not checked"
    return ""
