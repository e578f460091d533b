"""Time after a restore is what was in flight: nothing becomes late, no window waits that Flink would have fired."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.flink.harness import Job, make, restore, write_oracle
from tests.flink.harness.judge import WINDOW_MILLIS, Seen
from tests.flink.rewriting import recover
from tests.support.checkpoints import FIXTURES

JOB = Job(job="w", keys=50, fill_millis=3000, checkpoints=1)
SPEC = FIXTURES / "specs" / "a.yaml"
EPOCH = 1_700_000_000_000
"""Of the records' time; ``Jobs.java`` has the same number."""


def _told(seen: Seen, what: str) -> Counter[tuple[int, ...]]:
    """Windows are (key, start, records, whether all was over), late records (generator, sequence, key)."""
    return sum((Counter(rows) for (name, _), rows in seen.others.items() if name == what), Counter())


def _last_watermarks(checkpoint: Path, folder: Path) -> tuple[int, int]:
    """The smallest and the largest of what the channels say last of time; a channel that says nothing knows nothing."""
    oracle = write_oracle(checkpoint, SPEC.read_text(), folder / "oracle.jsonl.gz")
    last = [
        max((each.ts - EPOCH for each in elements if each.kind == "watermark" and each.ts is not None), default=-1)
        for elements in oracle.by_channel.values()
    ]
    return (min(last) if len(last) == JOB.parallelism**2 else -1), max(last)


def _decided(windows: Counter[tuple[int, ...]], low: int, high: int) -> Counter[tuple[int, ...]]:
    """Without the word on whether all was over where that depends on which source comes to its end first: between the
    two, a window fires as soon as those have ended that were behind.
    """
    return Counter(
        (key, start, count, -1 if low < start + WINDOW_MILLIS - 1 <= high else over)
        for key, start, count, over in windows.elements()
    )


@pytest.mark.soak
@pytest.mark.parametrize("downstream", ["false", "true"])
@pytest.mark.parametrize("parallelism", [2, 5])
def test_windows_fire_and_records_are_late_exactly_as_when_flink_rescales_by_itself(
    flink: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: int, downstream: str
) -> None:
    monkeypatch.setenv("CDR_RECOVER_OUTPUT_DOWNSTREAM", downstream)
    made = make(JOB, tmp_path / "made").checkpoints[-1]
    by_flink = restore(JOB, made, parallelism)
    assert by_flink.rescaled > 0
    recover(made, SPEC, str(parallelism), tmp_path / "chk")
    by_cdr = restore(JOB, tmp_path / "chk", parallelism)
    assert by_cdr.rescaled == 0
    assert _told(by_flink, "late") == Counter()
    assert _told(by_cdr, "late") == Counter()
    low, high = _last_watermarks(made, tmp_path)
    fired = _decided(_told(by_cdr, "windows"), low, high)
    assert fired == _decided(_told(by_flink, "windows"), low, high)
    for _, start, _, over in fired:
        assert over in (-1, start + WINDOW_MILLIS - 1 > low), "time in flight made it fire too early, or not at all"
    assert any(over == 0 for *_, over in fired), "only what was in flight can have made windows fire before the end"
