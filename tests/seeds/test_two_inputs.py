"""Two inputs through the real phases: in the least memory, and with an end that must wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdr_core.channels import batch_scan as scan_batch
from cdr_core.channels.channel_batch import BatchSource, ChannelBatch, Longs
from cdr_core.channels.channel_scan import scan_channel
from cdr_core.drain import task
from cdr_core.errors import PhaseRefused
from cdr_core.metadata import Phase, PhaseState, RecoveryState, Repository
from cdr_core.phases import read as phase_read
from cdr_core.planning.plan import Plan
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.settings import Settings
from tests.seeds.expected import Place, Record, compare, records_of
from tests.seeds.seven_to_two import SPEC
from tests.seeds.waiting import draining, wait_for_checkpoints
from tests.support import inline, output
from tests.support.busy import contention
from tests.support.generated import generated

NEW = 2
RUNS = 75
"""Through the real phases, for each setting; the tests that are not slow do three."""
Spilled = tuple[Repository, str, Settings]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDR_TABLE_RAW", "true")
    monkeypatch.setenv("CDR_PAGE_SIZE", "4KiB")
    monkeypatch.setenv("CDR_MEMORY_BUDGET", "4KiB")
    monkeypatch.setenv("CDR_SEGMENT_SIZE", "512")
    monkeypatch.setattr(task, "LISTEN_SECONDS", 0.005)


@pytest.fixture(scope="module")
def two_inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[Place, Record]]:
    """A checkpoint of parallelism 7 with two keyed inputs, and what is in it."""
    path = generated(tmp_path_factory.mktemp("two") / "chk", "7", "60kB", spec=SPEC.read_text())
    return path, records_of(path, str(SPEC))


def within(runs: int) -> pytest.MarkDecorator:
    return pytest.mark.timeout(300 + 30 * runs)


def spilled(source: str, spec: str, to: Path) -> Spilled:
    started = inline.start(RecoveryRequest(source, spec, str(NEW), f"parquet:{to}", "10ms"))
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL):
        inline.run(started[0], started[1], phase, started[2])
    return started


@pytest.mark.parametrize(
    ("checkpoints", "runs"),
    [
        pytest.param("true", 3, id="true", marks=within(3)),
        pytest.param("false", 3, id="false", marks=within(3)),
        pytest.param("true", RUNS, id=f"true-{RUNS}", marks=(within(RUNS), pytest.mark.soak)),
        pytest.param("false", RUNS, id=f"false-{RUNS}", marks=(within(RUNS), pytest.mark.soak)),
    ],
)
def test_both_inputs_are_drained_in_the_least_memory(
    two_inputs: tuple[str, dict[Place, Record]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    checkpoints: str,
    runs: int,
) -> None:
    """002-50: one input after the other, with every core busy, whether or not the drain can be cut."""
    monkeypatch.setenv("CDR_CHECKPOINT_DURING_RECOVERY", checkpoints)
    source, records = two_inputs
    with contention():
        for number in range(runs):
            to = tmp_path / f"out-{number}"
            repository, recovery, settings = spilled(source, str(SPEC), to)
            inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
            inline.run(repository, recovery, Phase.COMMIT, settings)
            assert compare(output.rows(to), records, NEW).is_exact
            assert (len(repository.checkpoints(recovery)) > 1) == (checkpoints == "true")
            repository.close()


def test_inputs_that_ended_before_the_drain_began_do_not_end_the_recovery(
    two_inputs: tuple[str, dict[Place, Record]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """002-30, 002-31, E25: no live input follows in a recovery; it is over when the last record is, not sooner."""
    monkeypatch.setenv("CDR_FAULTS", "drain.page=sleep:0.01")
    source, records = two_inputs
    repository, recovery, settings = spilled(source, str(SPEC), tmp_path / "out")
    with draining(recovery) as child:
        wait_for_checkpoints(repository, recovery, 1)
        with pytest.raises(PhaseRefused, match="drain is not done"):
            inline.run(repository, recovery, Phase.COMMIT, settings)
        assert repository.recovery(recovery).state is RecoveryState.DRAINING
        assert {row.name: row.state for row in repository.phases(recovery)}[Phase.DRAIN] is PhaseState.RUNNING
        assert output.manifest(tmp_path / "out") is None
        assert child.wait() == 0, "a commit that is refused does not disturb the drain"
    inline.run(repository, recovery, Phase.COMMIT, settings)
    assert compare(output.rows(tmp_path / "out"), records, NEW).is_exact
    repository.close()


def test_a_task_reads_its_channels_one_after_another(
    two_inputs: tuple[str, dict[Place, Record]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """000-21: large ones alone, neighbours that are small together; none out of order, none twice."""
    read: list[list[int]] = []
    opened, scanned = BatchSource.open, scan_channel

    def together(source: BatchSource, numbers: Longs, *more: Any) -> ChannelBatch:
        read.append(numbers.tolist())
        return opened(source, numbers, *more)

    def alone(plan: Plan, number: int, *more: Any) -> Any:
        read.append([number])
        return scanned(plan, number, *more)

    monkeypatch.setattr(scan_batch, "BATCH_CHANNELS", 5)
    monkeypatch.setattr(scan_batch, "LARGE", 1000)
    monkeypatch.setattr(BatchSource, "open", together)
    monkeypatch.setattr(phase_read, "scan_channel", alone)
    request = RecoveryRequest(two_inputs[0], str(SPEC), str(NEW), f"parquet:{tmp_path / 'out'}")
    repository, recovery, settings = inline.start(request)
    inline.run(repository, recovery, Phase.READ, settings)
    assert {len(numbers) > 1 for numbers in read} == {True, False}
    numbers = [number for each in read for number in each]
    assert len(numbers) > 50
    assert numbers == list(range(len(numbers)))
    repository.close()
