"""Specs and wishes that cannot work are refused with what is wrong, before anything runs."""

from __future__ import annotations

import pytest

from cdr_core.channels.channel_source import open_checkpoint
from cdr_core.errors import PlanRefused, Refused, SpecRefused
from cdr_core.planning.job_spec import parse_spec, read_spec
from cdr_core.planning.parallelism import RequestedParallelism, parse_parallelism
from cdr_core.planning.plan import Plan, make_plan
from tests.support.checkpoints import FixtureCheckpoints

SPEC = """
job: lab
exchanges:
  - name: main
    upstream: {operator: gen, partition: 0}
    downstream: {operator: slow, gate: 0}
    partitioner: hash
    record: TUPLE<LONG, INT, LONG, STRING>
    key: [f0]
"""


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("partitioner: hash", "partitioner: hsah"), "'hsah' is not one of"),
        (("LONG, STRING", "LONG, STRNG"), "exchange main"),
        (("key: [f0]", "keys: [f0]"), "unknown field 'keys'"),
        (("gate: 0", "gate: -1"), "gate -1"),
        (("upstream: {operator: gen, partition: 0}", "upstream: gen"), "upstream names no operator"),
        (("exchanges:", "exchange:"), "unknown field 'exchange'"),
        (("job: lab", "job: ["), "not YAML"),
    ],
)
def test_a_malformed_spec_is_refused_with_the_place(change: tuple[str, str], sentence: str) -> None:
    with pytest.raises(SpecRefused) as caught:
        parse_spec(SPEC.replace(*change))
    assert sentence in str(caught.value)


def test_a_gate_that_two_exchanges_claim_is_refused() -> None:
    twice = SPEC + SPEC[SPEC.index("  - name") :].replace("name: main", "name: other")
    with pytest.raises(SpecRefused, match="repeats the downstream gate"):
        parse_spec(twice)


@pytest.mark.parametrize("text", ["0", "-1", "two", "", "slow=", "=2", "slow=2,gen=x", "40000"])
def test_a_parallelism_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(PlanRefused):
        parse_parallelism(text)


def test_an_operator_whose_name_has_a_comma_is_named_by_its_id(fixture_checkpoint: FixtureCheckpoints) -> None:
    with pytest.raises(PlanRefused, match="use its id"):
        parse_parallelism("Map, then filter=2")
    checkpoint = open_checkpoint(str(fixture_checkpoint("a_p3_thr0", 2).path))
    wish = parse_parallelism(f"{checkpoint.operator('slow').operator_id}=2")
    assert make_plan(checkpoint, parse_spec(SPEC), wish, 1 << 20).exchanges[0].new_down == 2


def test_the_three_ways_to_wish() -> None:
    assert parse_parallelism("2") == RequestedParallelism(2, ())
    assert parse_parallelism("slow=2, gen=3") == RequestedParallelism(None, (("slow", 2), ("gen", 3)))
    assert parse_parallelism("same") == RequestedParallelism(None, ())


@pytest.mark.parametrize(
    ("change", "wish", "sentence"),
    [
        (("operator: slow", "operator: quick"), "2", "no operator 'quick'"),
        (("key: [f0]", "key: [f9]"), "2", "f9"),
        (("key: [f0]", "key: []"), "2", "without a key"),
        (("gate: 0", "gate: 1"), "2", "no exchange covers"),
        (("", ""), "129", "max parallelism is 128"),
        (("", ""), "fast=2", "no operator 'fast'"),
        (("partitioner: hash", "partitioner: forward"), "2", "forward exchange with in-flight data"),
        (("partitioner: hash", "partitioner: custom"), "2", "custom partitioner"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_by_name(
    fixture_checkpoint: FixtureCheckpoints, change: tuple[str, str], wish: str, sentence: str
) -> None:
    checkpoint = open_checkpoint(str(fixture_checkpoint("a_p3_thr0", 2).path))
    with pytest.raises(Refused) as caught:
        make_plan(checkpoint, parse_spec(SPEC.replace(*change)), parse_parallelism(wish), 1 << 20)
    assert sentence in str(caught.value)


def test_a_plan_survives_its_own_text_and_its_hash_forgets_where_the_checkpoint_lies(
    fixture_checkpoint: FixtureCheckpoints,
) -> None:
    checkpoint = open_checkpoint(str(fixture_checkpoint("a_p3_thr0", 2).path))
    plan = make_plan(checkpoint, parse_spec(SPEC), parse_parallelism("2"), 1 << 20)
    assert Plan.from_json(plan.to_json()) == plan
    other = make_plan(checkpoint, parse_spec(SPEC), parse_parallelism("slow=2"), 1 << 20)
    assert other.sha256 != plan.sha256
    moved = Plan.from_json(plan.to_json().replace(plan.checkpoint, "/elsewhere"))
    assert moved.sha256 == plan.sha256


@pytest.mark.timeout(60)
def test_a_file_without_an_end_is_no_job_spec() -> None:
    """Whoever may trigger a recovery may name any file of the host, and must not fill its memory with that."""
    with pytest.raises(SpecRefused, match="longer than a million characters"):
        read_spec("/dev/zero")
