"""A recovery checkpoint that cannot be stored, and one that is not wanted: the recovery goes on either way."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdr_core.drain import task
from cdr_core.metadata import AttemptState, Phase, RecoveryCheckpointState
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.seeds.expected import compare, records_of
from tests.support import inline, output
from tests.support.generated import KEYED, generated

NEW = 2


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A small checkpoint, and settings by which its drain is long enough to be cut."""
    monkeypatch.setenv("CDR_TABLE_RAW", "true")
    monkeypatch.setenv("CDR_PAGE_SIZE", "4KiB")
    monkeypatch.setenv("CDR_MEMORY_BUDGET", "16KiB")
    monkeypatch.setenv("CDR_SEGMENT_SIZE", "1KiB")
    monkeypatch.setenv("CDR_FAULTS", "drain.page=sleep:0.004")
    monkeypatch.setattr(task, "LISTEN_SECONDS", 0.005)
    return generated(tmp_path / "chk", "3", "150kB")


def test_a_checkpoint_that_cannot_be_written_is_given_up_and_the_drain_goes_on(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """002-39, E28: counted, with its reason; the same attempt completes later ones, and each record comes once."""
    monkeypatch.setenv("CDR_FAULTS", f"drain.page=sleep:0.004,checkpoint.manifest=once:{tmp_path / 'once'}:raise")
    monkeypatch.setenv("CDR_CHECKPOINT_TIMEOUT", "0s")
    records = records_of(source, str(tmp_path / "chk.yaml"))
    wish = RecoveryRequest(source, KEYED, str(NEW), f"parquet:{tmp_path / 'out'}", "20ms")
    repository, recovery, settings = inline.start(wish)
    for phase in Phase:
        inline.run(repository, recovery, phase, settings, inline.ThreadedWorkers())
    rows = repository.checkpoints(recovery)
    aborted = [row for row in rows if row.state is RecoveryCheckpointState.ABORTED]
    assert len(aborted) == 1
    assert "its manifest could not be written: fault injected" in str(aborted[0].reason)
    later = [row for row in rows if row.checkpoint_id > aborted[0].checkpoint_id]
    assert RecoveryCheckpointState.EXPIRED in {row.state for row in later}, "completed, and gone with the commit"
    assert [attempt.state for attempt in repository.attempts(recovery)] == [AttemptState.DONE] * len(Phase)
    assert compare(output.rows(tmp_path / "out"), records, NEW).is_exact
    repository.close()


@pytest.mark.parametrize("output_downstream", ["true", "false"])
@pytest.mark.parametrize("checkpoints", ["true", "false"])
def test_in_five_phases_only_one_flag_decides_whether_a_drain_is_cut(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output_downstream: str, checkpoints: str
) -> None:
    """001-18, 001-21, 002-11, 002-32: all four, none with a spill directory; each spills, and the rows are the same."""
    monkeypatch.setenv("CDR_RECOVER_OUTPUT_DOWNSTREAM", output_downstream)
    monkeypatch.setenv("CDR_CHECKPOINT_DURING_RECOVERY", checkpoints)
    records = records_of(source, str(tmp_path / "chk.yaml"))
    wish = RecoveryRequest(source, KEYED, str(NEW), f"parquet:{tmp_path / 'out'}", "20ms")
    repository, recovery, settings = inline.start(wish)
    for phase in Phase:
        inline.run(repository, recovery, phase, settings, inline.ThreadedWorkers())
    assert (len(repository.checkpoints(recovery)) > 1) == (checkpoints == "true")
    assert all(each.files for each in repository.spill_sets(recovery))
    assert compare(output.rows(tmp_path / "out"), records, NEW).is_exact
    repository.close()
