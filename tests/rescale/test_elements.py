"""Every element of every shipped checkpoint, equal to what Flink's own classes read in it."""

from __future__ import annotations

import json
import sys

import pytest

from cdr_core.cli import main
from tests.flink.fixtures import MADE, NUMBER, STATEFUL
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.elements import assert_elements_equal

BOTH = ("a_p3_thr0", "a_p3_thr1mb", "b_p3_thr0", "c_p7_thr0", "d_p4_thr0", "f_p3_thr0", "g_p7_thr0")
CHECKPOINTS = [(name, number) for name in BOTH for number in (1, 2)]
CHECKPOINTS += [("e_p4_seg32k", 2), ("r_p3_rocks_inc_true", 2), ("v5_a_p3_thr0", 1)]
CHECKPOINTS += [(name, NUMBER) for name in (*MADE, *STATEFUL) if not name.startswith("t_")]
"""Of job t there is no oracle of elements: both of its exchanges enter gate 0."""


@pytest.mark.parametrize(("name", "number"), CHECKPOINTS)
def test_every_element_equals_its_oracle(fixture_checkpoint: FixtureCheckpoints, name: str, number: int) -> None:
    checkpoint = fixture_checkpoint(name, number)
    assert_elements_equal(checkpoint.path, checkpoint.spec.read_text(), checkpoint.oracle)


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
