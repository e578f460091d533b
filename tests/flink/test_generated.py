"""``cdr generate`` writes Flink's format: Flink's own classes read in it what we read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.flink.harness import write_oracle
from tests.support.checkpoints import FIXTURES
from tests.support.elements import assert_elements_equal
from tests.support.generated import generated

CASES: list[tuple[str, dict[str, Any]]] = [
    ("a", {}),
    ("a", {"version": 3}),
    ("a", {"version": 4}),
    ("a", {"version": 5}),
    ("a", {"inline": True}),
    ("b", {"record_bytes": "30000-40000"}),
    ("d", {"timestamps": True}),
    ("f", {}),
    ("g", {"parallelism": "slow=4,gen=3,gen2=2"}),
]


@pytest.mark.parametrize(
    ("spec", "options"),
    [pytest.param(*case, marks=[] if at == 0 else pytest.mark.full) for at, case in enumerate(CASES)],
)
def test_flink_reads_a_generated_checkpoint_element_by_element(
    flink: str, tmp_path: Path, spec: str, options: dict[str, Any]
) -> None:
    text = (FIXTURES / "specs" / f"{spec}.yaml").read_text()
    checkpoint = Path(generated(tmp_path / "chk-1", size="300kB", spec=text, buffer="4KiB", **options))
    oracle = write_oracle(checkpoint, text, tmp_path / "oracle.jsonl.gz")
    assert not any(line["partial_left_over"] for line in oracle.lines["channel"])
    assert sum(element.from_state == "input+output" for element in oracle.elements) > 0
    assert assert_elements_equal(checkpoint, text, oracle) > 5
