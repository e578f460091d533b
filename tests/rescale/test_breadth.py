"""Jobs of every shape: several exchanges, gates, unions, ends that change or stay, and what is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdr_core.channels.channel_source import open_checkpoint
from cdr_core.channels.element_reader import element_batches
from cdr_core.errors import CdrError, CorruptChannelState, PlanRefused, Refused
from cdr_core.flink.metadata import OperatorState, Side, SubtaskState
from cdr_core.planning.job_spec import Partitioner, examine_spec, parse_spec
from cdr_core.planning.parallelism import parse_parallelism
from cdr_core.planning.plan import Plan, examine, make_plan
from cdr_core.verify.checkpoint import Checkpoint as SecondReader
from cdr_core.verify.spec import read_spec as read_independently
from tests.flink_formats.generate.made import Made, make
from tests.flink_formats.types import naive
from tests.rescale.inflight import At, Op, checkpoint_of, exchange, frame, plan_of, spec_of
from tests.support.checkpoints import FixtureCheckpoints

SAME_ID = "59fa767824610e31f4a11d6125e09bf4"
"""Flink's id of the uid 'slow'."""


def rescaled(made: Made, parallelism: str) -> Plan:
    return plan_of(open_checkpoint(str(made.path)), made.spec, parallelism)


def rows(plan: Plan) -> list[dict[str, Any]]:
    """Every record with its owner and its new channel."""
    wanted = frozenset({"exchange", "gate", "up", "down", "pos", "kind", "owner", *(e.name for e in plan.exchanges)})
    return [
        row | {"new_up": channel.new_up, "value": row[row["exchange"]]}
        for number, channel in enumerate(plan.channels)
        for batch in element_batches(plan, number, wanted)
        for row in batch.to_pylist()
        if row["kind"] == "record"
    ]


def check_owners(plan: Plan, made: Made) -> None:
    """Each record of the checkpoint once, with the owner that its exchange's rule gives."""
    found = rows(plan)
    places = [(row["exchange"], row["up"], row["down"], row["pos"]) for row in found]
    assert len(set(places)) == len(places)
    assert set(places) == {
        (made.plan.exchanges[channel.exchange].name, channel.up, channel.down, row["pos"])
        for channel, table in made.tables()
        for row in table.select(["pos", "kind"]).to_pylist()
        if row["kind"] == "record"
    }
    exchanges = {e.name: e for e in plan.exchanges}
    for row in found:
        e = exchanges[row["exchange"]]
        assert row["new_up"] == row["up"] % e.new_up
        expected = row["down"]
        if e.old_down != e.new_down:
            expected = row["down"] % e.new_down
            if e.partitioner == "hash":
                group = naive.key_group(naive.java_hash("LONG", row["value"]["f0"]), e.max_parallelism)
                expected = group * e.new_down // e.max_parallelism
            if e.partitioner == "global":
                expected = 0
            if e.partitioner == "custom":
                expected = row["value"]["f0"] % e.new_down
        assert row["owner"] == expected


JOB = spec_of(
    exchange("keyed", "gen", "join", gate=0),
    exchange("dealt", "other", "join", "rebalance", gate=1),
    exchange("onward", "join", "sink", "shuffle"),
    exchange("single", "join", "audit", "global", partition=1),
    exchange("routed", "sink", "store", "custom", more="owner: tests.rescale.routing:by_key_numpy"),
)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Five exchanges of five partitioners, two gates of one operator, two partitions of another; 100 key groups."""
    path = tmp_path_factory.mktemp("jobs") / "five"
    old = "gen=3,other=2,join=4,sink=5,audit=3,store=2"
    return make(path, JOB, old, "300kB", max_parallelism=100)


@pytest.mark.parametrize(
    "parallelism",
    [
        "same",
        "3",
        "7",
        "join=3",
        "join=6,gen=1",
        "gen=5,other=1",
        "sink=2,store=5",
        "audit=1,store=1",
        "gen=2,other=3,join=5,sink=4,audit=2,store=3",
    ],
)
def test_several_exchanges_and_gates_move_whichever_ends_change(job: Made, parallelism: str) -> None:
    check_owners(rescaled(job, parallelism), job)


def test_an_operator_that_nobody_named_keeps_its_parallelism_and_passes_through(job: Made) -> None:
    plan = rescaled(job, "sink=2")
    stays = {e.name for e in plan.exchanges if e.old_down == e.new_down}
    assert stays == {"keyed", "dealt", "single", "routed"}
    for channel in plan.channels:
        if plan.exchanges[channel.exchange].name in stays:
            assert [plan.subtasks[number].index for number in channel.subtasks] == [channel.down]


def test_a_union_has_a_gate_for_each_input_and_both_arrive(tmp_path: Path) -> None:
    spec = spec_of(exchange("left", "a", "both", gate=0), exchange("right", "b", "both", gate=1))
    made = make(tmp_path / "union", spec, "a=2,b=3,both=4", "100kB")
    plan = rescaled(made, "both=3,a=1")
    check_owners(plan, made)
    assert {row["gate"] for row in rows(plan)} == {0, 1}
    assert len(plan.subtasks) == 3


def test_a_stream_united_with_itself_has_two_partitions_and_two_gates(tmp_path: Path) -> None:
    spec = spec_of(exchange("once", "a", "both"), exchange("twice", "a", "both", partition=1, gate=1))
    made = make(tmp_path / "union", spec, "a=2,both=4", "100kB")
    check_owners(rescaled(made, "both=3"), made)


def test_inputs_of_a_union_on_one_gate_are_refused_with_the_way_out() -> None:
    with pytest.raises(Refused, match=r"exchange right repeats the downstream gate of exchange left; .* union"):
        parse_spec(spec_of(exchange("left", "a", "both"), exchange("right", "b", "both")))


def test_channels_counted_through_both_inputs_of_a_union_are_refused_with_the_exchange() -> None:
    """A gate with more channels than its upstream has subtasks is not the gate the spec says."""
    down = Op("both", 2, inputs={At(0, 0, channel): frame(1, 1) for channel in range(5)})
    with pytest.raises(CorruptChannelState, match=r"exchange left.*each input of a union is a gate of its own"):
        plan_of(checkpoint_of(Op("a", 2), Op("b", 3), down), spec_of(exchange("left", "a", "both")), "same")


def test_one_operator_under_two_names_is_not_read_twice() -> None:
    checkpoint = checkpoint_of(Op("gen", 2), Op("slow", 2, inputs={At(0, 0, 0): frame(1, 1)}))
    spec = spec_of(exchange("one"), exchange("two", down=SAME_ID, partition=1))
    with pytest.raises(Refused, match="exchange two repeats the downstream gate of exchange one"):
        plan_of(checkpoint, spec, "same")
    with pytest.raises(PlanRefused, match=r"slow and 59fa.* are one operator, requested at 2 and at 3"):
        plan_of(checkpoint, spec_of(exchange()), f"slow=2,{SAME_ID}=3")


@pytest.mark.parametrize("how", ["forward", "rescale", "broadcast"])
def test_exchanges_that_cannot_move_are_accepted_without_state_and_at_the_same_parallelism(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, how: str
) -> None:
    spec = spec_of(exchange("main"), exchange("fixed", "slow", "sink", how))
    made = make(tmp_path / "made", spec, "3", "50kB")
    check_owners(rescaled(made, "5"), made)
    real = open_checkpoint(str(fixture_checkpoint("a_p3_thr0", 2).path))
    spec = spec_of(exchange(how=how, record="TUPLE<LONG, INT, LONG, STRING>"))
    assert len(plan_of(real, spec, "same").channels) == 9
    for parallelism in ("2", "gen=2", "slow=4"):
        with pytest.raises(PlanRefused, match=f"exchange main is a {how} exchange with in-flight data and cannot"):
            plan_of(real, spec, parallelism)


@pytest.mark.parametrize(
    ("how", "pairs"),
    [
        ("forward", [(0, 0), (1, 1), (2, 2)]),
        ("rescale", [(0, 0), (0, 1), (1, 2), (1, 3)]),
        ("rescale", [(0, 0), (1, 0), (2, 1), (3, 1)]),
        ("rescale", [(0, 0), (1, 1), (2, 1)]),
        ("rescale", [(0, 0), (0, 1), (1, 2)]),
        ("rescale", [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1)]),
        ("rescale", [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4)]),
    ],
)
def test_state_that_a_pointwise_exchange_numbered_is_taken_where_parallelism_stays(
    tmp_path: Path, how: str, pairs: list[tuple[int, int]]
) -> None:
    """Channel 0 of subtask 2 comes from subtask 2 there, not from subtask 0; both halves of a connection meet."""
    ups, downs = max(up for up, _ in pairs) + 1, max(down for _, down in pairs) + 1
    inputs, outputs = {}, {}
    for number, (up, down) in enumerate(pairs):
        data, cut = frame(up, down), number % 17  # a record that lies in both halves
        channel = sum(other == down for _, other in pairs[:number])
        subpartition = sum(other == up for other, _ in pairs[:number])
        inputs[At(down, 0, channel)], outputs[At(up, 0, subpartition)] = data[:cut], data[cut:]
    gen, slow = Op("gen", ups, outputs=outputs), Op("slow", downs, inputs=inputs)
    checkpoint = checkpoint_of(gen, slow, directory=tmp_path / "chk-1")
    spec = spec_of(exchange(how=how))
    plan = plan_of(checkpoint, spec, "same")
    assert [(channel.up, channel.down) for channel in plan.channels] == sorted(pairs)
    assert [(row["up"], row["down"]) for row in rows(plan)] == sorted(pairs)
    assert all((row["value"]["f0"], row["value"]["f1"]) == (row["up"], row["down"]) for row in rows(plan))
    for side, there in ((Side.INPUT, inputs), (Side.OUTPUT, outputs)):
        subtasks, channels = plan.exchanges[0].ends_at(side, plan.channels.up, plan.channels.down)
        assert {At(int(subtask), 0, int(channel)) for subtask, channel in zip(subtasks, channels, strict=True)} == {
            *there
        }
    (described,) = read_independently(spec)
    with SecondReader(str(tmp_path / "chk-1")) as second:
        found = {(c.up, c.down): second.elements(described, c).whole() for c in second.channels(described)}
    assert {pair: len(elements.starts) for pair, elements in found.items()} == dict.fromkeys(pairs, 1)
    assert Plan.from_json(plan.to_json()) == plan
    with pytest.raises(PlanRefused, match=f"a {how} exchange with in-flight data and cannot change"):
        plan_of(checkpoint, spec, f"slow={downs + 1}")


@pytest.mark.parametrize("how", ["forward", "rescale", "broadcast", "custom", "hash"])
def test_channels_of_empty_chunks_hold_nothing_that_could_go_astray(how: str) -> None:
    """A buffer that was open and drained when the barrier came leaves a chunk of length 0."""
    up = Op("gen", 3, outputs={At(up, 0, 0): b"" for up in range(3)})
    down = Op("slow", 3, inputs={At(down, 0, 0): b"" for down in range(3)})
    side = Op("side", 2, inputs={At(0, 5, 0): b""})
    spec = spec_of(exchange(how=how, record="OPAQUE"))
    plan = plan_of(checkpoint_of(up, down, side), spec, "2")
    assert {channel.down for channel in plan.channels} <= {0, 1, 2}
    loaded = Op("gen", 3, outputs={At(0, 0, 1): frame(1, 1)})
    with pytest.raises(PlanRefused, match="exchange main"):
        plan_of(checkpoint_of(loaded, down, side), spec, "2")
    loaded = Op("side", 2, inputs={At(0, 5, 0): frame(1, 1)})
    with pytest.raises(PlanRefused, match="side has in-flight data on gate 5, which no exchange covers"):
        plan_of(checkpoint_of(up, down, loaded), spec, "2")


def test_a_key_whose_hash_only_java_knows_is_refused_only_where_it_would_be_needed() -> None:
    down = Op("slow", 3, inputs={At(1, 0, 0): frame(1, 1)})
    checkpoint = checkpoint_of(Op("gen", 3), down)
    spec = spec_of(exchange(record="TUPLE<POJO<id LONG>, INT>"))
    plan = plan_of(checkpoint, spec, "same")
    assert plan.exchanges[0].key == ()
    assert len(plan_of(checkpoint, spec, "gen=2").channels) == 1
    with pytest.raises(Refused, match=r"exchange main: field 'f0' of type POJO.* cannot be the key 'f0'"):
        plan_of(checkpoint, spec, "2")
    with pytest.raises(Refused, match="no field 'f7'"):
        plan_of(checkpoint, spec.replace("[f0]", "[f7]"), "same")


def test_a_forward_exchange_between_single_subtasks_is_no_question() -> None:
    checkpoint = checkpoint_of(Op("gen", 1), Op("slow", 1, inputs={At(0, 0, 0): frame(1, 1)}))
    assert len(plan_of(checkpoint, spec_of(exchange(how="forward")), "same").channels) == 1


def test_a_parallelism_beyond_the_operators_own_maximum_is_refused_for_every_such_operator() -> None:
    checkpoint = checkpoint_of(Op("gen", 3, 10), Op("slow", 3, 7, {At(0, 0, 0): frame(1, 1)}))
    assert len(plan_of(checkpoint, spec_of(exchange(how="rebalance")), "7").subtasks) == 7
    examined = examine(checkpoint, parse_spec(spec_of(exchange(how="rebalance"))), parse_parallelism("11"), 1)
    assert [str(error) for error in examined.refusals] == [
        "operator gen cannot run at parallelism 11: its max parallelism is 10; choose a smaller one.",
        "operator slow cannot run at parallelism 11: its max parallelism is 7; choose a smaller one.",
    ]


@pytest.mark.parametrize("max_parallelism", [3, 7, 100, 128, 32768])
def test_key_groups_are_those_of_the_checkpoint_whatever_their_number(tmp_path: Path, max_parallelism: int) -> None:
    made = make(tmp_path / "made", spec_of(exchange()), "3", "30kB", max_parallelism=max_parallelism)
    plan = rescaled(made, "2")
    assert plan.exchanges[0].max_parallelism == max_parallelism
    check_owners(plan, made)


def _opaque(made: Made, parallelism: str, more: str = "") -> Plan:
    spec = parse_spec(spec_of(exchange(record="OPAQUE", more=more)))
    return make_plan(open_checkpoint(str(made.path)), spec, parse_parallelism(parallelism), 1 << 62)


def test_an_opaque_hash_exchange_moves_only_where_no_channel_has_two_owners(tmp_path: Path) -> None:
    made = make(tmp_path / "made", spec_of(exchange()), "6", "60kB", max_parallelism=120)
    owners = {(row["up"], row["down"], row["pos"]): row["owner"] for row in rows(rescaled(made, "3"))}
    for more in ("", "key: [f0]"):
        plan = _opaque(made, "3", more)
        assert all(len(channel.subtasks) == 1 for channel in plan.channels)
        assert {(row["up"], row["down"], row["pos"]): row["owner"] for row in rows(plan)} == owners
        with pytest.raises(PlanRefused, match=r"exchange main is a hash exchange whose record is OPAQUE, .* channels"):
            _opaque(made, "4", more)
    assert len(_opaque(made, "gen=2,slow=6").subtasks) == 6


def test_a_hash_exchange_without_a_key_moves_only_where_no_channel_has_two_owners() -> None:
    spec = spec_of(exchange()).replace("key: [f0]", "key: []")
    first, middle = {At(0, 0, 0): frame(1, 1)}, {At(1, 0, 0): frame(1, 1)}
    assert plan_of(checkpoint_of(Op("gen", 1), Op("slow", 3, inputs=first)), spec, "slow=2").channels[0].subtasks == (
        0,
    )
    with pytest.raises(
        PlanRefused, match="exchange main is a hash exchange without a key, and the records of 1 of its 1"
    ):
        plan_of(checkpoint_of(Op("gen", 1), Op("slow", 3, inputs=middle)), spec, "slow=2")


def test_finished_subtasks_and_upstream_operators_leave_what_they_sent() -> None:
    down = Op("slow", 3, inputs={At(0, 0, 1): frame(1, 1)}, ended=[2])
    for upstream in (Op("gen", 2, finished=True), Op("gen", 2, ended=[1])):
        plan = plan_of(checkpoint_of(upstream, down), spec_of(exchange(how="rebalance")), "slow=2")
        assert [(channel.up, channel.down) for channel in plan.channels] == [(1, 0)]
        assert len(plan.subtasks) == 2


def test_an_exchange_between_finished_operators_is_empty_and_moves() -> None:
    checkpoint = checkpoint_of(Op("gen", 2, finished=True), Op("slow", 3, finished=True))
    assert len(plan_of(checkpoint, spec_of(exchange(how="forward")), "5").channels) == 0


def test_data_for_an_operator_that_had_finished_is_refused_with_the_exchange() -> None:
    up = Op("gen", 2, outputs={At(0, 0, 1): frame(1, 1)})
    with pytest.raises(PlanRefused, match="exchange main has in-flight data for an operator that had finished"):
        plan_of(checkpoint_of(up, Op("slow", 3, finished=True)), spec_of(exchange()), "same")


def test_every_refusal_of_a_plan_is_collected_once() -> None:
    up = Op("gen", 3, outputs={At(0, 0, 1): frame(1, 1), At(0, 4, 1): frame(1, 1), At(1, 4, 0): frame(1, 1)})
    side = Op("side", 2, inputs={At(0, 0, 0): frame(1, 1), At(1, 0, 0): frame(1, 1)})
    checkpoint = checkpoint_of(up, Op("slow", 3), side)
    spec, wrong = examine_spec(
        spec_of(
            exchange("main", how="custom"),
            exchange("lost", "nobody", "slow", gate=1),
            exchange("typo", "gen", "slow", "hsah", gate=2, partition=2),
            exchange("pos", "gen", "slow", gate=3, partition=3),
        )
    )
    examined = examine(checkpoint, spec, parse_parallelism("slow=200,ghost=2"), 1)
    sentences = [error.what for error in (*wrong, *examined.refusals)]
    assert sentences == [
        f"exchange typo: partitioner 'hsah' is not one of {', '.join(Partitioner)}",
        "exchange pos is named like a column that every table has",
        "the checkpoint has no operator 'ghost'",
        "operator slow cannot run at parallelism 200: its max parallelism is 128",
        "the checkpoint has no operator 'nobody'",
        "exchange main has a custom partitioner, and the job spec names no owner function",
        "operator gen has in-flight data on partition 4, which no exchange covers",
        "operator side has in-flight data on gate 0, which no exchange covers",
    ]
    with pytest.raises(CdrError, match="ghost"):
        make_plan(checkpoint, spec, parse_parallelism("slow=200,ghost=2"), 1)


class Doubled(Op):
    """An operator whose first subtask has every input channel twice, which no Flink writes."""

    def state(self) -> OperatorState:
        state = super().state()
        first = state.subtasks[0]
        assert isinstance(first, SubtaskState)
        doubled = replace(first, input_channels=(*first.input_channels, *first.input_channels))
        return replace(state, subtasks=(doubled, *state.subtasks[1:]))


def test_damage_that_several_exchanges_meet_is_one_refusal() -> None:
    """A channel that is described twice would be read in a wrong order."""
    checkpoint = checkpoint_of(Op("gen", 2), Doubled("slow", 2, inputs={At(0, 0, 0): frame(1, 1)}))
    spec = parse_spec(spec_of(exchange("one"), exchange("two", gate=1, partition=1)))
    (refusal,) = examine(checkpoint, spec, parse_parallelism("same"), 1).refusals
    assert isinstance(refusal, CorruptChannelState)


@pytest.mark.parametrize("name", ["pos", "Raw", "key_group", "owner"])
def test_an_exchange_cannot_be_named_like_a_column(name: str) -> None:
    with pytest.raises(Refused, match=f"exchange {name} is named like a column"):
        parse_spec(spec_of(exchange(name)))


def test_two_exchanges_whose_names_differ_in_case_only_are_one_column() -> None:
    with pytest.raises(Refused, match="exchange Main repeats the name of exchange main"):
        parse_spec(spec_of(exchange("main"), exchange("Main", gate=1, partition=1)))
