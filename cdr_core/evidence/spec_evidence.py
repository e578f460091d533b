"""Evidence in the checkpoint itself for the types and keys of a job spec.

Two sources: the serializers that Flink stored in the head of the downstream operator's keyed state, and a bounded
sample of the exchange's records. A record lies on the channel to the subtask that owns its key, so a wrong key puts
sampled records on wrong subtasks; each distinct key on the right one makes a coincidence less likely.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from cdr_core.audit.receipt import ExchangeFindings, Finding
from cdr_core.channels.channel_source import close_files, open_planned
from cdr_core.channels.record_owners import old_owners
from cdr_core.channels.state_source import NO_HEAD, keyed_head
from cdr_core.errors import SpecRefused, UnprovenKey
from cdr_core.evidence.sample_values import Sample, show_values
from cdr_core.evidence.sampling import ChannelSample, sample_channels
from cdr_core.flink.checkpoint import Checkpoint
from cdr_core.flink.decode import BadValue
from cdr_core.flink.keys import groups_of, key_hashes, key_type
from cdr_core.flink.state.agreement import agrees, key_agrees, type_text
from cdr_core.flink.state.serializers import KeyedHead, Serializer
from cdr_core.planning.exchange_binding import OPAQUE, PlannedExchange
from cdr_core.planning.job_spec import Partitioner
from cdr_core.planning.plan import Plan

PROVEN_BELOW: Final = 1e-6
"""A key is proven when a wrong one would fit the sample with a smaller probability."""
FEW: Final = 2
DAMAGED_SHARE: Final = 50
"""Up to so many misplaced keys, or one in so many, may be damaged records; more of them are another key's."""
CORRECT: Final = "correct the job spec: another field or type, or another order of the key's fields"
TRUST: Final = "correct the key in the job spec, or add --trust-key if you are sure of it"


@dataclass(frozen=True, slots=True)
class ExchangeEvidence:
    """The evidence for one exchange. ``key`` is ``None`` where the key decides nothing, ``types`` where the record is
    OPAQUE.

    ``decides``: the key decides which new subtask gets a record, so that an unproven key is refused unless the user
    trusts it. ``contradictions`` are refused in any case. ``empty``: no record is in flight. ``misplaced``: sampled
    records lie on subtasks that do not own their keys.
    """

    name: str
    key: Finding | None
    types: Finding | None
    sample: Sample
    decides: bool = False
    contradictions: tuple[str, ...] = ()
    empty: bool = False
    misplaced: bool = False

    @property
    def findings(self) -> ExchangeFindings:
        """Return the part for a receipt, which contains no values of records."""
        return ExchangeFindings(self.name, self.key, self.types)

    @property
    def key_is_unproven(self) -> bool:
        """Return whether records in flight were routed by a key without evidence."""
        return self.key is not None and not self.key.proven and not self.empty

    def refusals(self, *, trusted: bool, needs_values: bool = False) -> list[SpecRefused]:
        """Return why this exchange must not be recovered with this spec. ``needs_values``: the target is made of
        values.
        """
        found = [SpecRefused(text, hint=CORRECT) for text in self.contradictions]
        if needs_values and self.sample.misfit:
            found.append(SpecRefused(f"exchange {self.name}: {self.sample.misfit}", hint=CORRECT))
        if found or self.key is None or self.key.proven or not self.decides or trusted:
            return found
        return [UnprovenKey(f"exchange {self.name}: its key is unproven: {self.key.reason}", hint=TRUST)]

    def to_json(self) -> dict[str, Any]:
        return {
            **self.findings.to_json(),
            "decides": self.decides,
            "contradictions": list(self.contradictions),
            "empty": self.empty,
            "misplaced": self.misplaced,
            "sample": asdict(self.sample),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ExchangeEvidence:
        sample = value["sample"]
        ranges = {name: (low, high) for name, (low, high) in sample["ranges"].items()}
        return cls(
            value["name"],
            None if value["key"] is None else Finding.from_json(value["key"]),
            None if value["types"] is None else Finding.from_json(value["types"]),
            Sample(sample["records"], tuple(sample["rows"]), ranges, sample["misfit"]),
            value["decides"],
            tuple(value["contradictions"]),
            value["empty"],
            value["misplaced"],
        )


def gather_evidence(checkpoint: Checkpoint, plan: Plan, *, shown: bool = True) -> tuple[ExchangeEvidence, ...]:
    """Return the evidence of every exchange of the plan, in order. Reads a bounded sample, whatever the checkpoint's
    size.

    ``shown``: values of records may be displayed.

    Closes the checkpoint afterwards, so that the next reader notices if another checkpoint has taken its place.
    """
    try:
        return tuple(_examine(checkpoint, plan, number, shown=shown) for number in range(len(plan.exchanges)))
    finally:
        open_planned.cache_clear()
        close_files()


def refuse_unproven(evidence: Sequence[ExchangeEvidence], *, trusted: bool, needs_values: bool = False) -> None:
    """Raise the first refusal, if there is one."""
    for exchange in evidence:
        for refusal in exchange.refusals(trusted=trusted, needs_values=needs_values):
            raise refusal


def relax_key_checks(plan: Plan, evidence: Sequence[ExchangeEvidence]) -> Plan:
    """Return the plan in which a key that the records contradict is not checked where nothing depends on it."""
    loose = {each.name for each in evidence if each.misplaced and not each.decides}
    exchanges = tuple(replace(each, key_checked=False) if each.name in loose else each for each in plan.exchanges)
    return replace(plan, exchanges=exchanges)


def keys_are_proven(evidence: Sequence[ExchangeEvidence]) -> bool:
    """Return whether every key by which records in flight were routed is proven."""
    return not any(exchange.key_is_unproven for exchange in evidence)


def _examine(checkpoint: Checkpoint, plan: Plan, number: int, *, shown: bool) -> ExchangeEvidence:
    exchange = plan.exchanges[number]
    if exchange.record == OPAQUE.text:
        return ExchangeEvidence(exchange.name, None, None, Sample())
    with_data = np.flatnonzero((plan.channels.exchange == number) & (plan.channels.bytes > 0))
    samples = list(sample_channels(plan, with_data))
    head = keyed_head(checkpoint, checkpoint.operator(exchange.downstream)) if _is_keyed(exchange) else NO_HEAD
    types, wrong_types = _judge_types(exchange, head)
    judged = _judge_key(exchange, head, samples) if exchange.key and _is_keyed(exchange) else _NO_KEY
    without_records = [sample.number for sample in samples if sample.whole and not len(sample.starts)]
    in_flight = np.setdiff1d(with_data, np.array(without_records, np.int64))
    decides = judged.fits and bool((plan.channels.owner_count[in_flight] > 1).any())
    wrong = (wrong_types, judged.wrong_type, judged.wrong_places if decides else "")
    sample = show_values(exchange, samples)
    return ExchangeEvidence(
        exchange.name,
        judged.finding,
        types,
        sample if shown else replace(sample, rows=(), ranges={}),
        decides,
        tuple(filter(None, wrong)),
        empty=not len(in_flight),
        misplaced=judged.misplaced,
    )


def _is_keyed(exchange: PlannedExchange) -> bool:
    return exchange.partitioner == Partitioner.HASH


def _judge_types(exchange: PlannedExchange, head: KeyedHead) -> tuple[Finding, str]:
    """Compare the record's type with the serializer of a state that holds records of this gate."""
    for state, found in _record_states(head, exchange.gate):
        same = agrees(exchange.description, found)
        if same is False:
            return Finding(False, f"state {state} holds {type_text(found)}"), (
                f"exchange {exchange.name}: its records are {exchange.record} in the job spec, and {type_text(found)} "
                f"in state {state} of the checkpoint"
            )
        if same:
            return Finding(True, f"state {state} of the checkpoint has this serializer"), ""
    return Finding(False, "nothing in the checkpoint tells the types of these records"), ""


_JOIN_INPUTS: Final = {"left-records": 0, "right-records": 1}
"""States of a SQL join, by the gate whose records they hold."""


def _record_states(head: KeyedHead, gate: int) -> list[tuple[str, Serializer]]:
    """Return the states of Flink's own operators that hold the records of a gate unchanged."""
    windows = any(state.name.endswith("window-timers") for state in head.states)
    found: list[tuple[str, Serializer]] = []
    for state in head.states:
        value = state.value
        if value is None:
            continue
        if state.name == "window-contents" and windows and gate == 0:
            if state.kind == "LIST" and len(value.parts) == 1:
                found.append((state.name, value.parts[0]))
            elif state.kind == "REDUCING":
                found.append((state.name, value))
        if _JOIN_INPUTS.get(state.name) == gate:
            found += [(state.name, row) for row in _joined(value)]
    return found


def _joined(value: Serializer) -> list[Serializer]:
    """Return the record in the state of a SQL join: alone, by its unique key, or with the number of its occurrences."""
    if value.name == "RowDataSerializer":
        return [value]
    if value.name == "MapSerializer" and len(value.parts) == 2:
        key, kept = value.parts
        if kept.name == "RowDataSerializer":
            return [kept]
        if key.name == "RowDataSerializer" and kept.name == "IntSerializer":
            return [key]
    return []


@dataclass(frozen=True, slots=True)
class _Judged:
    """A judged key. ``wrong_type`` and ``wrong_places``: how the state's head and the records contradict it.

    ``fits``: some sampled record has this key, or there is none. Where channels are damaged or no record has it, no
    owner can be found by it, right or wrong: the phases stop there and name the place.
    """

    finding: Finding | None
    wrong_type: str = ""
    wrong_places: str = ""
    fits: bool = True
    misplaced: bool = False


_NO_KEY: Final = _Judged(None)


def _judge_key(exchange: PlannedExchange, head: KeyedHead, samples: Sequence[ChannelSample]) -> _Judged:
    named = f"exchange {exchange.name}: its key [{', '.join(exchange.key)}]"
    try:
        wanted = key_type(exchange.description, exchange.key)
    except SpecRefused as error:  # a plan with such a key is refused already
        return _Judged(Finding(False, error.what), fits=False)
    if head.key is not None and key_agrees(wanted, head.key) is False:
        keyed = f"the state of its downstream operator is keyed by {type_text(head.key)}"
        return _Judged(Finding(False, keyed), wrong_type=f"{named} is {wanted.text}, but {keyed}")
    keys = _distinct_keys(exchange, samples)
    if not len(keys.downs) and (keys.unfit or not all(sample.sound for sample in samples)):
        reason = "no sampled record fits the record type" if keys.unfit else "its channels cannot be read"
        return _Judged(Finding(False, reason), fits=False)
    finding, wrong = _judge_places(exchange, keys)
    wrong_places = f"{named} is wrong: {wrong}" if wrong else ""
    return _Judged(finding, wrong_places=wrong_places, misplaced=not keys.owned.all())


@dataclass(frozen=True, slots=True, eq=False)
class _Keys:
    """One entry per distinct (hash code, old subtask): the subtask, and whether it owns the key."""

    downs: np.ndarray[Any, np.dtype[np.int64]]
    owned: np.ndarray[Any, np.dtype[np.bool_]]
    unfit: int


def _distinct_keys(exchange: PlannedExchange, samples: Sequence[ChannelSample]) -> _Keys:
    codes, downs, unfit = [np.zeros(0, np.uint32)], [np.zeros(0, np.int64)], 0
    for sample in samples:
        starts, ends = sample.starts, sample.ends
        while len(starts):
            try:
                found = np.unique(key_hashes(exchange.description, exchange.key, sample.data, starts, ends))
            except BadValue as error:
                unfit += 1
                starts, ends = starts[: error.record], ends[: error.record]
                continue
            codes.append(found)
            downs.append(np.full(len(found), sample.down, np.int64))
            break
    pairs = np.unique(np.stack([np.concatenate(codes).astype(np.int64), np.concatenate(downs)]), axis=1)
    groups = groups_of(pairs[0].astype(np.uint32), exchange.max_parallelism)
    return _Keys(pairs[1], old_owners(exchange)[groups] == pairs[1], unfit)


def _judge_places(exchange: PlannedExchange, keys: _Keys) -> tuple[Finding, str]:
    total, right = len(keys.owned), int(np.count_nonzero(keys.owned))
    wrong = total - right
    if not total:
        return Finding(False, "no record is in flight, or none is short enough for a sample"), ""
    if exchange.old_down == 1:
        return Finding(False, "at parallelism 1 every key lies on the right subtask"), ""
    owned = np.bincount(old_owners(exchange), minlength=exchange.old_down) / exchange.max_parallelism
    chance = float(np.log10(owned[keys.downs]).sum())
    if wrong:
        text = f"{wrong:,} of {total:,} sampled keys belong to other subtasks than the ones they were on their way to"
        return Finding(False, text), text if wrong > max(FEW, total // DAMAGED_SHARE) else ""
    if chance < math.log10(PROVEN_BELOW):
        text = f"{right:,} distinct keys lie on the subtasks that own them"
        return Finding(True, f"{text}; by chance with probability 1e{math.floor(chance)}"), ""
    plural = "key lies" if right == 1 else "keys lie"
    text = f"only {right:,} distinct {plural} on the subtasks that own them"
    return Finding(False, f"{text}; by chance with probability {10**chance:.2g}"), ""
