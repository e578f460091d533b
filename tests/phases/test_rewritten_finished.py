"""Single subtasks that had finished are marked in a re-written checkpoint only where nothing was rescaled."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cdr_core.errors import IllegalState
from cdr_core.flink.channel_writer import SubtaskSide
from cdr_core.flink.metadata import FinishedSubtask, Side, SubtaskState, read_metadata, write_metadata
from cdr_core.flink.rewritten_metadata import rewritten
from cdr_core.verify.verify import Request, verify
from tests.phases.rewriting import rewrite
from tests.rescale.inflight import At, Op, checkpoint_of, exchange, frame, spec_of, watermark

GEN = Op("gen", 3, ended=[1])
MID = Op("mid", 3, ended=[1], outputs={At(0, 0, 2): watermark(7) + frame(1, 1), At(2, 0, 0): frame(2, 2)})
SLOW = Op("slow", 3, inputs={At(0, 0, 0): frame(3, 3), At(1, 0, 2): frame(4, 4)})


def marks(out: Path) -> dict[str, list[int]]:
    """By operator, the subtasks that are said to have finished; every one must be there."""
    found = {}
    for operator in read_metadata((out / "_metadata").read_bytes()).operators:
        assert sorted(each.index for each in operator.subtasks) == [*range(operator.parallelism)]
        found[operator.label] = [each.index for each in operator.subtasks if isinstance(each, FinishedSubtask)]
    return found


@pytest.mark.parametrize("wish", ["same", "5", "gen=2", "mid=2,slow=2"])
def test_flink_is_not_given_marks_of_some_operators_only(tmp_path: Path, wish: str) -> None:
    source, out, spec = tmp_path / "chk-1", tmp_path / "out", tmp_path / "spec.yaml"
    checkpoint_of(GEN, MID, SLOW, directory=source)
    spec.write_text(spec_of(exchange(up="mid", how="rebalance")))
    receipt = rewrite(source, spec, wish, out)
    assert (receipt["verdict"], receipt["records"]["published"]) == ("balanced", 4)
    kept = wish == "same"
    assert marks(out) == {"gen": [1] * kept, "mid": [1] * kept, "slow": []}
    assert verify(Request(str(source), f"checkpoint:{out}", str(spec), "")).differences == ()
    _swap_a_mark(out)
    shutil.rmtree(out / "_cdr")
    (out / "cdr-receipt.json").unlink()  # or the sum of _metadata would tell
    (difference,) = verify(Request(str(source), f"checkpoint:{out}", str(spec), "")).differences
    assert str(difference).endswith("of operator gen other subtasks have finished than in the source")


def _swap_a_mark(out: Path) -> None:
    """The first operator's last subtask but one has finished where it had not, and the other way round."""
    metadata = read_metadata((out / "_metadata").read_bytes())
    gen, *others = metadata.operators
    *before, one, last = gen.subtasks
    swapped = SubtaskState(one.index) if isinstance(one, FinishedSubtask) else FinishedSubtask(one.index)
    changed = replace(metadata, operators=(replace(gen, subtasks=(*before, swapped, last)), *others))
    (out / "_metadata").write_bytes(write_metadata(changed))


def test_channels_of_a_subtask_that_stays_finished_are_refused() -> None:
    source = checkpoint_of(GEN, MID, SLOW).metadata
    _, mid, slow = source.operators
    same = {each.operator_id: each.parallelism for each in source.operators}
    first = mid.subtasks[0]
    assert isinstance(first, SubtaskState)
    handles = {SubtaskSide(mid.operator_id, Side.OUTPUT, 1): first.output_channels}
    with pytest.raises(IllegalState, match="output channels were written for a subtask that has finished"):
        rewritten(source, same, {}, handles)
    assert rewritten(source, {**same, slow.operator_id: 2}, {}, handles).operators[0].subtasks[1] == SubtaskState(1)
