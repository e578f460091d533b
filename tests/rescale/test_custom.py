"""A user's owner function: what it is given, and one clear sentence for everything it can do wrong."""

from __future__ import annotations

import struct
import sys
import types

import numpy as np
import pyarrow as pa
import pytest

from cdr_core.channels.record_owners import window_owners
from cdr_core.errors import Refused, SpecRefused, Where
from cdr_core.flink.decode import BadValue
from cdr_core.flink.types import parse_type
from cdr_core.planning.custom_partitioner import call_owner
from cdr_core.planning.job_spec import parse_spec
from cdr_core.planning.plan import Plan
from tests.rescale import routing
from tests.rescale.inflight import (
    RECORD,
    At,
    Op,
    checkpoint_of,
    exchange,
    frame,
    plan_of,
    spec_of,
    watermark,
    window_of,
)

DATA = b"".join([frame(7, 0), watermark(5), frame(8, 1), frame(11, 2)])
HERE = Where("chk", "main", subtask=1, gate=0, channel=2)


def planned(function: str, parallelism: str = "4", *, record: str = RECORD) -> Plan:
    more = f"owner: tests.rescale.routing:{function}" if function else ""
    down = Op("slow", 3, 60, {At(1, 0, 2): DATA})
    return plan_of(
        checkpoint_of(Op("gen", 3), down), spec_of(exchange(how="custom", more=more, record=record)), parallelism
    )


def owners(function: str, data: bytes = DATA, record: str = RECORD) -> list[int]:
    plan = planned(function, record=record)
    return list(map(int, window_owners(plan.exchanges[0], parse_type(record), window_of(data), HERE)))


@pytest.mark.parametrize("function", ["by_key", "by_key_numpy", "chunked", "Tenants.owner"])
def test_an_owner_function_gives_arrow_or_numpy_integers_of_any_width(function: str) -> None:
    assert owners(function) == [3, -1, 0, 3]


def test_it_is_given_the_values_of_records_only_and_both_parallelisms() -> None:
    routing.CALLS.clear()
    owners("noted")
    ((values, parallelism, max_parallelism),) = routing.CALLS
    assert isinstance(values, pa.StructArray)
    assert values.to_pylist() == [{"f0": 7, "f1": 0}, {"f0": 8, "f1": 1}, {"f0": 11, "f1": 2}]
    assert (parallelism, max_parallelism) == (4, 60)


def test_a_record_that_is_no_structure_is_the_field_f0() -> None:
    routing.CALLS.clear()
    owners("noted", struct.pack(">ibq", 9, 1, 42), "LONG")
    assert routing.CALLS[0][0].to_pylist() == [{"f0": 42}]


def test_without_records_it_is_not_called() -> None:
    routing.CALLS.clear()
    assert owners("noted", watermark(5)) == [-1]
    assert routing.CALLS == []


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        ("too_few", "gave 2 owners for 3 records"),
        ("square", "gave an array of shape (3, 1) as owners for 3 records"),
        ("too_large", "gave owner 4 for record 0 of its batch, not one from 0 to 3"),
        ("negative", "gave owner -1 for record 0 of its batch"),
        ("null", "gave no owner (null) for record 2 of its batch"),
        ("real", "gave a numpy array of float64, not of integers"),
        ("truth", "gave an Arrow array of bool, not of integers"),
        ("a_list", "gave list, not an integer Arrow or numpy array"),
        ("nothing", "gave NoneType, not an integer Arrow or numpy array"),
        ("broken", "failed with LookupError: no such tenant"),
        ("leaving", "failed with SystemExit: 7"),
    ],
)
def test_what_it_does_wrong_is_refused_with_exchange_function_and_channel(function: str, sentence: str) -> None:
    with pytest.raises(SpecRefused) as caught:
        owners(function)
    text = str(caught.value)
    assert f"exchange main: owner function tests.rescale.routing:{function} {sentence}" in text
    assert "subtask 1, gate 0, channel 2" in text
    assert "\n" not in text
    assert not caught.value.retry_helps


def test_a_value_that_does_not_decode_is_named_by_its_offset() -> None:
    cut = frame(7, 0) + struct.pack(">ibqh", 11, 1, 8, 1)
    with pytest.raises(BadValue) as caught:
        owners("by_key", cut)
    assert caught.value.where.offset == len(frame(7, 0))


@pytest.mark.parametrize(
    ("owner", "sentence"),
    [
        ("tests.rescale.routing:gone", "cannot be loaded: AttributeError"),
        ("tests.rescale.routing:NO_FUNCTION", "cannot be loaded: TypeError: NO_FUNCTION is no function"),
        ("no_such_module_anywhere:owner", "cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_a_function_that_is_not_there_is_refused_when_the_plan_is_made(owner: str, sentence: str) -> None:
    spec = spec_of(exchange(how="custom", more=f"owner: {owner}"))
    checkpoint = checkpoint_of(Op("gen", 3), Op("slow", 3, 60, {At(1, 0, 2): DATA}))
    with pytest.raises(SpecRefused) as caught:
        plan_of(checkpoint, spec, "4")
    assert f"exchange main: owner function {owner} {sentence}" in str(caught.value)
    assert "PYTHONPATH, here and on every Spark executor" in str(caught.value)
    plan_of(checkpoint, spec, "same")


@pytest.mark.parametrize("owner", ["routing", "routing:", ":owner", "a b:c", "../x:y", "[1, 2]"])
def test_a_name_that_is_no_function_is_refused_with_the_spec(owner: str) -> None:
    with pytest.raises(SpecRefused, match=r"exchange main: owner .* is not module:function"):
        parse_spec(spec_of(exchange(how="custom", more=f"owner: {owner if '[' in owner else repr(owner)}")))


def test_an_owner_function_of_another_partitioner_is_refused_rather_than_ignored() -> None:
    with pytest.raises(SpecRefused, match="exchange main has an owner function, but its partitioner is rebalance"):
        parse_spec(spec_of(exchange(how="rebalance", more="owner: tests.rescale.routing:by_key")))


def test_custom_without_a_function_is_refused_by_name_unless_nothing_has_to_be_decided() -> None:
    with pytest.raises(Refused, match="exchange main has a custom partitioner, and the job spec names no owner"):
        planned("", "4")
    assert len(planned("", "same").channels) == 1
    assert len(planned("", "slow=3,gen=5").channels) == 1
    assert planned("", "1").channels[0].subtasks == (0,)


def test_an_opaque_custom_exchange_is_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"exchange main has a custom partitioner, .* its record is OPAQUE"):
        planned("by_key", "4", record="OPAQUE")
    assert len(planned("by_key", "same", record="OPAQUE").channels) == 1


def test_a_custom_exchange_may_send_any_record_anywhere_when_the_parallelism_changes() -> None:
    plan = planned("by_key", "5")
    assert [plan.subtasks[number].index for number in plan.channels[0].subtasks] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("hidden", [0, 50_000_000])
def test_a_masked_owner_is_no_owner(hidden: int) -> None:
    """What lies under numpy's mask is nobody's answer, be it in range or not."""
    owners = np.ma.masked_array(np.array([0, hidden, 1]), mask=[False, True, False])
    sys.modules["masked_owners"] = module = types.ModuleType("masked_owners")
    module.owner = lambda values, parallelism, max_parallelism: owners  # type: ignore[attr-defined]
    with pytest.raises(SpecRefused, match=r"gave no owner \(masked\) for record 1"):
        call_owner("main", "masked_owners:owner", pa.array([1, 2, 3]), 2, 128, Where())
