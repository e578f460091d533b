"""The shipped checkpoints and their oracles are what the other tests take them for."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.flink.fixtures import MADE, NUMBER
from tests.support.checkpoints import FIXTURES, SHIPPED, FixtureCheckpoints

WITH_ORACLE = [
    *SHIPPED,
    *((name, NUMBER) for name in MADE),
]


@pytest.mark.parametrize(("name", "n"), WITH_ORACLE)
def test_an_oracle_adds_up(fixture_checkpoint: FixtureCheckpoints, name: str, n: int) -> None:
    checkpoint = fixture_checkpoint(name, n)
    assert (checkpoint.path / "_metadata").is_file()
    assert checkpoint.spec.is_file()
    oracle = checkpoint.oracle
    counted = Counter(element.kind for element in oracle.elements)
    summed: Counter[str] = Counter()
    for kind_and_side, count in oracle.summary["elements"].items():
        summed[kind_and_side.partition("/")[0].replace("record_ts", "record")] += count
    assert counted == summed
    assert {channel: len(elements) for channel, elements in oracle.by_channel.items()} == {
        channel: totals.elements for channel, totals in oracle.channels.items() if totals.elements
    }
    assert sum(totals.input_bytes for totals in oracle.channels.values()) == oracle.summary["input_bytes"]
    # (gen, seq) numbers a record within its gate: two sources may count alike.
    identities = Counter((record.channel.gate, record.gen, record.seq) for record in oracle.records)
    assert not identities or max(identities.values()) == 1


def test_the_plain_checkpoint_holds_what_its_readme_says(fixture_checkpoint: FixtureCheckpoints) -> None:
    oracle = fixture_checkpoint("a_p3_thr0", 2).oracle
    records = list(oracle.records)
    assert len(records) == 1878
    assert sum(record.from_state == "input+output" for record in records) == 9
    assert {record.owner(3) for record in records if record.channel.down == 1} == {1}


@pytest.mark.parametrize("name", ["a_p3_thr0", "f_p3_thr0", "g_p7_thr0"])
def test_the_key_group_of_an_oracle_is_the_one_flink_routed_by(
    fixture_checkpoint: FixtureCheckpoints, name: str
) -> None:
    parallelism = int(name.split("_")[1].removeprefix("p"))
    records = list(fixture_checkpoint(name, 2).oracle.records)
    assert records
    assert all(record.owner(parallelism) == record.channel.down for record in records)


@pytest.mark.parametrize("name", ["rw_a_3to2_keep", "rw_a_drop"])
def test_a_rewritten_checkpoint_comes_without_an_oracle(fixture_checkpoint: FixtureCheckpoints, name: str) -> None:
    checkpoint = fixture_checkpoint(name, 2)
    assert checkpoint.spec == FIXTURES / "specs" / "a.yaml"
    with pytest.raises(AssertionError, match="without an oracle"):
        _ = checkpoint.oracle


def test_a_test_that_writes_into_a_shipped_checkpoint_is_found(tmp_path: Path) -> None:
    checkpoints = FixtureCheckpoints(tmp_path)
    checkpoint = checkpoints("a_p3_thr0", 2)
    assert checkpoints.changed() == []
    checkpoint.copy(tmp_path / "mine").joinpath("_metadata").write_bytes(b"")
    assert checkpoints.changed() == []
    checkpoint.path.joinpath("extra").touch()
    assert checkpoints.changed() == ["a_p3_thr0"]


def test_a_test_has_a_home_of_its_own_and_no_other_setting(tmp_path: Path) -> None:
    assert {name: value for name, value in os.environ.items() if name.startswith("CDR_")} == {
        "CDR_HOME": str(tmp_path / ".cdr"),
        "CDR_LOG_LEVEL": "warning",
    }
