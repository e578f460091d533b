"""Every element of every shipped checkpoint, equal to what Flink's own classes read in it."""

from __future__ import annotations

import json
import sys
import zlib

import pytest

from cdr_core.cli import main
from cdr_core.rescale.elements import element_batches
from cdr_core.rescale.parallelism import parse_parallelism
from cdr_core.rescale.plan import make_plan
from cdr_core.rescale.source import open_checkpoint
from cdr_core.rescale.spec import parse_spec
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.oracle import ChannelId

BOTH = ("a_p3_thr0", "a_p3_thr1mb", "b_p3_thr0", "c_p7_thr0", "d_p4_thr0", "f_p3_thr0", "g_p7_thr0")
CHECKPOINTS = [(name, number) for name in BOTH for number in (1, 2)]
CHECKPOINTS += [("e_p4_seg32k", 2), ("r_p3_rocks_inc_true", 2), ("v5_a_p3_thr0", 1)]


@pytest.mark.parametrize(("name", "number"), CHECKPOINTS)
def test_every_element_equals_its_oracle(fixture_checkpoint: FixtureCheckpoints, name: str, number: int) -> None:
    checkpoint = fixture_checkpoint(name, number)
    spec = parse_spec(checkpoint.spec.read_text())
    plan = make_plan(open_checkpoint(str(checkpoint.path)), spec, parse_parallelism("same"), 1 << 30)
    expected = dict(checkpoint.oracle.by_channel)
    for place, channel in enumerate(plan.channels):
        exchange = plan.exchanges[channel.exchange]
        rows = [row for batch in element_batches(plan, place) for row in batch.to_pylist()]
        theirs = expected.pop(ChannelId(exchange.gate, channel.up, channel.down), ())
        assert len(rows) == len(theirs)
        for row, element in zip(rows, theirs, strict=True):
            mine = (row["pos"], row["kind"], row["from_state"], row["ts"])
            assert mine == (element.pos, element.kind, element.from_state, element.ts)
            if element.is_record:
                key, gen, seq, payload = row[exchange.name].values()
                data = payload.encode() if isinstance(payload, str) else payload
                assert (key, gen, seq) == (element.key, element.gen, element.seq)
                assert (len(data), zlib.crc32(data)) == (element.payload_len, element.payload_crc32)
                if exchange.key:
                    assert row["key_group"] == element.key_group
            else:
                assert row[exchange.name] is None
    assert not any(expected.values())


def test_the_shell_prints_them_as_json_lines_with_their_owner(
    fixture_checkpoint: FixtureCheckpoints, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    arguments = [str(checkpoint.path), "--spec", str(checkpoint.spec), "--parallelism", "2", "--json"]
    monkeypatch.setattr(sys, "argv", ["cdr", "elements", *arguments])
    with pytest.raises(SystemExit):
        main.run()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = {(e.channel.up, e.channel.down, e.pos): e for e in checkpoint.oracle.elements}
    assert len(lines) == len(expected)
    for line in lines:
        element = expected[line["up"], line["down"], line["pos"]]
        assert line["kind"] == element.kind
        assert line["owner"] == (element.owner(2) if element.is_record else None)
        assert ("fields" in line) == element.is_record
