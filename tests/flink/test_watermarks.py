"""Time after a restore is what was in flight: nothing becomes late, no window waits that Flink would have fired."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.flink.harness import Job, make, restore
from tests.flink.harness.judge import Seen
from tests.flink.test_rewritten import recover
from tests.support.checkpoints import FIXTURES

JOB = Job(job="w", keys=50, fill_millis=3000, checkpoints=1)


def _told(seen: Seen, what: str) -> Counter[tuple[int, ...]]:
    """Windows are (key, start, records, whether all was over), late records (generator, sequence, key)."""
    return sum((Counter(rows) for (name, _), rows in seen.others.items() if name == what), Counter())


@pytest.mark.full
@pytest.mark.parametrize("downstream", ["false", "true"])
@pytest.mark.parametrize("parallelism", [2, 5])
def test_windows_fire_and_records_are_late_exactly_as_when_flink_rescales_by_itself(
    flink: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: int, downstream: str
) -> None:
    monkeypatch.setenv("CDR_RECOVER_OUTPUT_DOWNSTREAM", downstream)
    made = make(JOB, tmp_path / "made").checkpoints[-1]
    by_flink = restore(JOB, made, parallelism)
    assert by_flink.rescaled > 0
    recover(made, FIXTURES / "specs" / "a.yaml", str(parallelism), tmp_path / "chk")
    by_cdr = restore(JOB, tmp_path / "chk", parallelism)
    assert by_cdr.rescaled == 0
    assert _told(by_flink, "late") == Counter()
    assert _told(by_cdr, "late") == Counter()
    assert _told(by_cdr, "windows") == _told(by_flink, "windows")
    early = [window for window in _told(by_cdr, "windows") if not window[-1]]
    assert early, "only what was in flight can have made windows fire before the end"
