"""More key groups than any Flink has: the metadata is read and written back, but nobody counts them one by one."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdr_core.channels.channel_source import open_checkpoint
from cdr_core.errors import CorruptMetadata
from cdr_core.flink.metadata import read_metadata, write_metadata
from cdr_core.planning.job_spec import parse_spec
from cdr_core.planning.parallelism import parse_parallelism
from cdr_core.planning.plan import make_plan
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints

MOST = 1 << 15
ALLOWED = 16 * 1024 * 1024


def _with(checkpoint: FixtureCheckpoint, to: Path, uid: str, **numbers: int) -> Path:
    """A copy where one operator says other numbers; that it round-trips is part of the rule."""
    path = checkpoint.copy(to)
    value = read_metadata((path / "_metadata").read_bytes())
    changes: dict[str, Any] = dict(numbers)
    operators = tuple(replace(each, **changes) if each.uid == uid else each for each in value.operators)
    data = write_metadata(replace(value, operators=operators))
    assert write_metadata(read_metadata(data)) == data
    (path / "_metadata").write_bytes(data)
    return path


@pytest.mark.parametrize("wish", ["same", "2"])
@pytest.mark.parametrize("uid", ["gen", "slow"])
@pytest.mark.parametrize(
    "numbers",
    [
        {"max_parallelism": MOST + 1},
        {"max_parallelism": 2**31 - 1},
        {"parallelism": 2**31 - 1, "max_parallelism": 2**31 - 1},
    ],
)
def test_an_operator_that_no_flink_can_have_run_is_refused_before_anything_is_laid_out(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, numbers: dict[str, int], uid: str, wish: str
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    path = _with(checkpoint, tmp_path / "chk-2", uid, **numbers)
    spec = parse_spec(checkpoint.spec.read_text())
    tracemalloc.start()
    try:
        with pytest.raises(CorruptMetadata, match=f"operator {uid} has max parallelism {numbers['max_parallelism']}"):
            make_plan(open_checkpoint(str(path)), spec, parse_parallelism(wish), 1 << 20)
        assert tracemalloc.get_traced_memory()[1] < ALLOWED
    finally:
        tracemalloc.stop()


def test_an_operator_at_flinks_own_limit_is_planned(fixture_checkpoint: FixtureCheckpoints, tmp_path: Path) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    path = _with(checkpoint, tmp_path / "chk-2", "slow", max_parallelism=MOST)
    spec = parse_spec(checkpoint.spec.read_text())
    (exchange,) = make_plan(open_checkpoint(str(path)), spec, parse_parallelism("same"), 1 << 20).exchanges
    assert exchange.max_parallelism == MOST
