"""Drafted job specs: they parse, name what the checkpoint shows, and leave open what it does not."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdr_core.channels.channel_source import open_checkpoint
from cdr_core.cli import main
from cdr_core.drafting import Draft, as_document, as_yaml, draft_spec, parse_job_graph
from cdr_core.drafting.ends import End
from cdr_core.drafting.framing import Evidence
from cdr_core.drafting.pairing import pair_ends
from cdr_core.errors import SpecRefused
from cdr_core.flink.metadata import OperatorState, Side
from cdr_core.planning.job_spec import Exchange, Partitioner, parse_spec
from cdr_core.planning.parallelism import parse_parallelism
from cdr_core.planning.plan import make_plan
from tests.flink_formats.generate.made import Made, exchange, make, spec_of
from tests.support.checkpoints import FixtureCheckpoints

SOURCE, SLOW = "6bf01baa9d2ca23a3ef7ce311722523d", "59fa767824610e31f4a11d6125e09bf4"
TUPLE = "TUPLE<LONG, INT, LONG, STRING>"


def ends(exchange: Exchange) -> tuple[str, int, str, int]:
    return exchange.upstream, exchange.partition, exchange.downstream, exchange.gate


def parsed(draft: Draft) -> dict[tuple[str, int, str, int], Exchange]:
    """The draft's exchanges by their ends; text and object must say the same."""
    spec = parse_spec(as_yaml(draft))
    assert parse_spec(json.dumps(as_document(draft))).exchanges == spec.exchanges
    return {ends(exchange): exchange for exchange in spec.exchanges}


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("a_p3_thr0", 1),
        ("a_p3_thr0", 2),
        ("a_p3_thr1mb", 2),
        ("b_p3_thr0", 2),
        ("d_p4_thr0", 2),
        ("e_p4_seg32k", 2),
        ("f_p3_thr0", 2),
        ("g_p7_thr0", 2),
        ("r_p3_rocks_inc_true", 2),
        ("v5_a_p3_thr0", 1),
    ],
)
def test_a_draft_joins_what_the_job_joined(fixture_checkpoint: FixtureCheckpoints, name: str, number: int) -> None:
    checkpoint = fixture_checkpoint(name, number)
    wanted = parse_spec(checkpoint.spec.read_text())
    opened = open_checkpoint(str(checkpoint.path))
    draft = draft_spec(opened)
    found = parsed(draft)
    assert set(found) == {ends(exchange) for exchange in wanted.exchanges}
    assert {e.partitioner for e in found.values()} == {e.partitioner for e in wanted.exchanges}
    assert {e.record.text for e in found.values()} == {"OPAQUE"}
    make_plan(opened, parse_spec(as_yaml(draft)), parse_parallelism("same"), 1 << 20)


def test_a_checkpoint_without_channel_state_says_so_and_still_parses(
    fixture_checkpoint: FixtureCheckpoints, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["cdr", "spec", str(fixture_checkpoint("c_p7_thr0", 2).path)])
    with pytest.raises(SystemExit) as done:
        main.run()
    out = capsys.readouterr().out
    assert done.value.code == 0
    assert out.startswith("# This checkpoint holds no in-flight data")
    assert "gen, slow, sink, rules" in out
    (only,) = parse_spec(out).exchanges
    assert (only.upstream, only.downstream) == ("FILL_IN_1", "FILL_IN_2")


def test_as_json_the_shell_prints_the_object_and_its_comments_beside_it(
    fixture_checkpoint: FixtureCheckpoints, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    monkeypatch.setattr(sys, "argv", ["cdr", "spec", str(checkpoint.path), "--json"])
    with pytest.raises(SystemExit):
        main.run()
    shown = capsys.readouterr()
    assert json.loads(shown.out)["exchanges"][0]["upstream"] == {"operator": "gen", "partition": 0}
    assert "main: paired: in 9 channels a record begins" in shown.err


# --- pairing ---


def end(name: str, side: Side, parallelism: int, other: int) -> End:
    pairs = [(a, b) for a in range(parallelism) for b in range(other)]
    channels = frozenset(pairs if side is Side.OUTPUT else [(b, a) for a, b in pairs])
    return End(OperatorState(name * 32, parallelism, 128, name=name), side, 0, channels)


def no_evidence(_output: End, _gate: End) -> Evidence:
    return Evidence(contradicted=False, straddling=0)


def names(found: Any) -> list[tuple[str | None, str | None]]:
    name = lambda one: one.operator.name if one else None  # noqa: E731
    return [(name(pair.output), name(pair.gate)) for pair in found]


def test_a_chain_of_exchanges_is_unravelled_from_the_end_that_is_certain() -> None:
    outputs = [end("a", Side.OUTPUT, 3, 3), end("b", Side.OUTPUT, 3, 3)]
    gates = [end("c", Side.INPUT, 3, 3), end("b", Side.INPUT, 3, 3)]
    assert names(pair_ends(gates, outputs, no_evidence)) == [("b", "c"), ("a", "b")]


def test_what_the_bytes_contradict_is_not_paired_however_well_it_fits() -> None:
    outputs = [end("a", Side.OUTPUT, 3, 3)]
    gates = [end("c", Side.INPUT, 3, 3)]
    pairs = pair_ends(gates, outputs, lambda _output, _gate: Evidence(True, 0))
    assert names(pairs) == [(None, "c"), ("a", None)]


def test_two_outputs_that_fit_two_gates_are_left_open() -> None:
    outputs = [end("a", Side.OUTPUT, 3, 3), end("b", Side.OUTPUT, 3, 3)]
    gates = [end("c", Side.INPUT, 3, 3), end("d", Side.INPUT, 3, 3)]
    pairs = pair_ends(gates, outputs, no_evidence)
    assert names(pairs) == [(None, "c"), (None, "d")]
    assert {one.operator.name for one in pairs[0].candidates} == {"a", "b"}


def test_parallelism_alone_decides_where_it_differs() -> None:
    outputs = [end("a", Side.OUTPUT, 2, 4), end("b", Side.OUTPUT, 3, 5)]
    gates = [end("d", Side.INPUT, 5, 3), end("c", Side.INPUT, 4, 2)]
    assert names(pair_ends(gates, outputs, no_evidence)) == [("b", "d"), ("a", "c")]


@pytest.fixture
def two_inputs(tmp_path: Path) -> Callable[..., Made]:
    """Two alike exchanges into one operator: only the bytes tell them apart."""
    text = spec_of(
        exchange("one", "gen", "join", TUPLE), exchange("other", "more", "join", TUPLE, gate=1, how="rebalance")
    )
    return lambda **options: make(tmp_path / "chk", text, "3", "60kB", **options)


def test_records_that_straddle_tell_alike_exchanges_apart(two_inputs: Callable[..., Made]) -> None:
    draft = draft_spec(open_checkpoint(str(two_inputs().path)))
    assert set(parsed(draft)) == {("gen", 0, "join", 0), ("more", 0, "join", 1)}
    assert len({exchange.name for exchange in draft.exchanges}) == 2


def test_without_their_files_alike_exchanges_stay_open(two_inputs: Callable[..., Made]) -> None:
    made = two_inputs()
    for file in made.path.iterdir():
        if file.name != "_metadata":
            file.unlink()
    draft = draft_spec(open_checkpoint(str(made.path)))
    assert set(parsed(draft)) == {("FILL_IN_1", 0, "join", 0), ("FILL_IN_2", 0, "join", 1)}
    assert "fill in one of gen partition 0, more partition 0" in as_yaml(draft)


# --- the plan ---


def node(identifier: str, description: str, *inputs: tuple[str, str], parallelism: int = 3) -> dict[str, Any]:
    edges = [{"num": n, "id": i, "ship_strategy": s, "exchange": "pipelined"} for n, (i, s) in enumerate(inputs)]
    return {
        "id": identifier,
        "parallelism": parallelism,
        "description": description,
        **({"inputs": edges} if edges else {}),
    }


def plan_of(*nodes: dict[str, Any]) -> str:
    return json.dumps({"plan": {"jid": "0" * 32, "name": "lab: a", "type": "STREAMING", "nodes": nodes}})


@pytest.mark.parametrize("strategy", ["HASH", "REBALANCE", "SHUFFLE", "GLOBAL", "CUSTOM", "RESCALE", "BROADCAST"])
def test_the_plan_names_the_partitioner(fixture_checkpoint: FixtureCheckpoints, strategy: str) -> None:
    plan = plan_of(node(SOURCE, "Source: gen<br/>"), node(SLOW, "slow<br/>+- Sink: Writer<br/>", (SOURCE, strategy)))
    draft = draft_spec(open_checkpoint(str(fixture_checkpoint("a_p3_thr0", 2).path)), parse_job_graph(plan))
    (found,) = parsed(draft).values()
    assert ends(found) == ("gen", 0, "slow", 0)
    assert found.partitioner is Partitioner(strategy.lower())
    assert parse_spec(as_yaml(draft)).job == "lab: a"
    assert draft.notes == ()


def test_a_chain_sends_from_its_last_operator(fixture_checkpoint: FixtureCheckpoints) -> None:
    checkpoint = open_checkpoint(str(fixture_checkpoint("f_p3_thr0", 2).path))
    by_name = {operator.name: operator for operator in checkpoint.metadata.operators}
    head, tail, down = by_name["Source: gen"], by_name["DataStreamToTable"], by_name["GroupAggregate[6]"]
    assert head is not tail
    plan = plan_of(
        node(head.operator_id, "Source: gen -&gt; DataStreamToTable"),
        node(down.operator_id, "[6]:GroupAggregate(groupBy=[k])", (head.operator_id, "HASH")),
    )
    assert set(parsed(draft_spec(checkpoint, parse_job_graph(plan)))) == {
        ("DataStreamToTable", 0, "GroupAggregate[6]", 0)
    }


def test_without_channel_state_the_plan_alone_is_drafted(fixture_checkpoint: FixtureCheckpoints) -> None:
    checkpoint = open_checkpoint(str(fixture_checkpoint("c_p7_thr0", 2).path))
    rules = checkpoint.operator("rules").operator_id
    plan = plan_of(
        node(SOURCE, "Source: gen", parallelism=7),
        node(rules, "Source: rules", parallelism=1),
        node(SLOW, "slow -> Sink: Writer", (SOURCE, "HASH"), (rules, "BROADCAST"), parallelism=7),
        node("f" * 32, "Elsewhere", (SLOW, "REBALANCE")),
    )
    draft = draft_spec(checkpoint, parse_job_graph(plan))
    found = parsed(draft)
    assert {key: e.partitioner for key, e in found.items()} == {
        ("gen", 0, "slow", 0): Partitioner.HASH,
        ("rules", 0, "slow", 1): Partitioner.BROADCAST,
    }
    assert "no in-flight data" in draft.notes[0]
    assert "input 0 of Elsewhere joins operators that are not in this checkpoint" in draft.notes[1]


def test_a_chain_without_output_state_still_sends_from_its_last_operator(
    fixture_checkpoint: FixtureCheckpoints,
) -> None:
    checkpoint = open_checkpoint(str(fixture_checkpoint("c_p7_thr0", 2).path))
    rules = checkpoint.operator("rules").operator_id
    chained = node(SLOW, "slow<br/>+- Sink: Writer<br/>", parallelism=7)
    unnamed = node(SLOW, "slow -&gt; Something", parallelism=7)
    for vertex, upstream in ((chained, "sink"), (unnamed, "FILL_IN_1")):
        plan = plan_of(vertex, node(rules, "Source: rules", (SLOW, "REBALANCE"), parallelism=1))
        assert set(parsed(draft_spec(checkpoint, parse_job_graph(plan)))) == {(upstream, 0, "rules", 0)}


def test_two_consumers_of_one_operator_are_two_partitions(fixture_checkpoint: FixtureCheckpoints) -> None:
    checkpoint = open_checkpoint(str(fixture_checkpoint("c_p7_thr0", 2).path))
    sink = checkpoint.operator("sink").operator_id
    plan = plan_of(
        node(SOURCE, "Source: gen", parallelism=7),
        node(SLOW, "slow", (SOURCE, "HASH"), parallelism=7),
        node(sink, "Sink: Writer", (SOURCE, "REBALANCE"), parallelism=7),
    )
    assert set(parsed(draft_spec(checkpoint, parse_job_graph(plan)))) == {("gen", 0, "slow", 0), ("gen", 1, "sink", 0)}


def test_in_flight_data_that_the_plan_does_not_explain_is_drafted_too(two_inputs: Callable[..., Made]) -> None:
    checkpoint = open_checkpoint(str(two_inputs().path))
    join = checkpoint.operator("join").operator_id
    plan = plan_of(node(SOURCE, "gen"), node(join, "join", (SOURCE, "CUSTOM")))
    draft = draft_spec(checkpoint, parse_job_graph(plan))
    found = parsed(draft)
    assert set(found) == {("gen", 0, "join", 0), ("more", 0, "join", 1)}
    assert found["gen", 0, "join", 0].partitioner is Partitioner.CUSTOM
    assert "fits no input of the plan" in draft.notes[0]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "not JSON"),
        ("[]", "no nodes"),
        ('{"plan": {"nodes": 3}}', "no nodes"),
        ('{"nodes": [{}]}', "no id"),
        ('{"nodes": [{"id": "a", "inputs": [{"num": 0}]}]}', "inputs that cannot be read"),
        ('{"nodes": [{"id": "a", "inputs": 3}]}', "inputs that cannot be read"),
    ],
)
def test_what_is_no_plan_is_refused(text: str, what: str) -> None:
    with pytest.raises(SpecRefused, match=what):
        parse_job_graph(text)


def test_a_plan_that_is_not_there_is_one_sentence(
    fixture_checkpoint: FixtureCheckpoints, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(fixture_checkpoint("a_p3_thr0", 2).path)
    monkeypatch.setattr(sys, "argv", ["cdr", "spec", path, "--plan", "/nowhere/plan.json"])
    with pytest.raises(SystemExit) as done:
        main.run()
    assert done.value.code == 3
    assert "cannot be read" in capsys.readouterr().err
