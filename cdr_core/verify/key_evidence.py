"""Evidence for the key of a job spec from the source's own records: a second opinion on the receipt's claim.

A record lies on the channel to the subtask that owns its key group. A wrong key puts records on wrong subtasks. The
probability that all distinct key groups lie right by chance is computed; below a millionth the key is proven.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cdr_core.errors import CdrError
from cdr_core.verify.framing import value_of
from cdr_core.verify.keys import owner
from cdr_core.verify.placement import Ends
from cdr_core.verify.rows import Reading

PROVEN_BELOW = 1e-6
RECORDS = 256
"""Number of elements at the front of a channel that are examined."""
MOST_GROUPS = 4096


class KeyEvidence:
    """Collects, per exchange, key groups and the old subtasks that they were on their way to."""

    def __init__(self) -> None:
        self._found: dict[str, set[tuple[int, int]]] = {}
        self._ends: dict[str, Ends] = {}

    def add(self, reading: Reading, ends: Ends, downs: Sequence[int], raws: Iterable[bytes]) -> None:
        """Add records and their old subtasks; records that do not fit their type are reported elsewhere."""
        name = reading.exchange.name
        if not reading.keyed or not downs:
            return
        self._ends[name] = ends
        found = self._found.setdefault(name, set())
        for down, raw in zip(downs, raws, strict=True):
            if reading.group is None or len(found) >= MOST_GROUPS:
                return
            try:
                fields, _ = reading.record.read(value_of(raw))
            except CdrError:
                continue
            found.add((reading.group(fields), down))

    def unproven(self, receipt: Mapping[str, Any] | None) -> Iterator[str]:
        """Yield a sentence for each unproven key. A key that a receipt calls proven counts unless records contradict
        it.
        """
        claims = {each["name"]: each.get("key") or {} for each in (receipt or {}).get("exchanges") or ()}
        for name, pairs in self._found.items():
            ends = self._ends[name]
            wrong = sum(owner(group, ends.old_down, ends.max_parallelism) != down for group, down in pairs)
            if wrong:
                yield f"{name}: {wrong} of {len(pairs)} key groups were on their way to subtasks that do not own them"
            elif not claims.get(name, {}).get("proven") and _chance(ends, pairs) >= PROVEN_BELOW:
                yield f"{name}: nothing in the source proves that this is the key"


def _chance(ends: Ends, pairs: set[tuple[int, int]]) -> float:
    owners = [owner(group, ends.old_down, ends.max_parallelism) for group in range(ends.max_parallelism)]
    return math.prod(owners.count(down) / ends.max_parallelism for _, down in pairs)
