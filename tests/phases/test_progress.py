"""How far a unit is while it runs: what it says itself, what the driver stores, what a person sees."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cdr_core.cli.main import app
from cdr_core.cli.progress import PhaseBars
from cdr_core.metadata import Phase, UnitProgress
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.runtime import unit_progress as meter
from cdr_core.runtime.driver import Progress, run_phase
from cdr_core.runtime.phase_command import own_runner
from cdr_core.storage.local import LocalStorage
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.draining import make_slow

METERED = (Phase.READ, Phase.FILTER, Phase.SPILL, Phase.DRAIN)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], list[UnitProgress]]:
    """Everything that units say of themselves, by phase and unit; they say it at every step."""
    found: dict[tuple[str, str], list[UnitProgress]] = defaultdict(list)
    real = LocalStorage.replace

    def noted(self: LocalStorage, uri: str, data: bytes) -> None:
        *_, phase, running, unit = uri.split("/")
        if running == meter.RUNNING:
            found[phase, unit].append(UnitProgress(*json.loads(data)))
        real(self, uri, data)

    monkeypatch.setattr(LocalStorage, "replace", noted)
    monkeypatch.setattr(meter, "WRITE_SECONDS", 0.0)
    return found


@pytest.mark.seed("003-01")
def test_a_unit_of_every_phase_says_how_much_of_what_is_done_while_it_runs(
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: dict[tuple[str, str], list[UnitProgress]],
) -> None:
    """Records and bytes grow up to what the unit has when it is done, and the total was known from the start."""
    make_slow(monkeypatch, faults="")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path / 'out'}")
    repository, recovery, settings = inline.start(request)
    seen: list[Progress] = []
    monkeypatch.setattr("cdr_core.runtime.driver.HEARTBEAT_SECONDS", -1.0)
    for phase in METERED:
        attempt = repository.begin_attempt(recovery, phase, own_runner(str(phase)))
        assert attempt is not None
        workers = inline.ThreadedWorkers(1)
        run_phase(repository, recovery, phase, attempt.epoch, settings, workers, seen.append)
        for unit in repository.units(recovery, phase):
            own = said[str(phase), unit.unit]
            assert len(own) > 1, (phase, unit.unit)
            for earlier, later in pairwise(own):
                assert (earlier.records, earlier.bytes) <= (later.records, later.bytes)
            (total,) = {each.bytes_total for each in own}
            assert total is not None
            # The plan's sizes count the heads of chunks, too.
            assert own[-1].bytes == total or (phase is Phase.READ and 0.99 * total < own[-1].bytes < total)
            assert own[-1].records == unit.records, (phase, unit.unit)
            assert own[0].bytes < own[-1].bytes, (phase, unit.unit)
            assert own[-1].eta_s is not None
    assert any(progress.running for progress in seen), "the driver noticed some of it"
    repository.close()


class _Job:
    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)


def test_the_time_left_is_that_of_this_try_and_counts_nothing_that_was_done_before(tmp_path: Path) -> None:
    now = [0.0]
    job: Any = _Job(tmp_path)
    counter = meter.Meter(job, "00000", 1000, records=5, size=500, clock=lambda: now[0])
    counter.add(0, 0)
    assert meter.read_meters(job) == {"00000": UnitProgress(5, 500, 1000, None)}, "nothing is known of its pace"
    now[0] = 10.0
    counter.add(1, 100)
    assert meter.read_meters(job) == {"00000": UnitProgress(6, 600, 1000, 40.0)}
    now[0] += meter.WRITE_SECONDS / 2
    counter.add(1, 100)
    counter.at(lambda: (9, 900))
    assert meter.read_meters(job)["00000"].bytes == 600, "now and then, not at every step"
    now[0] += 9.5
    counter.at(lambda: (9, 900))
    assert (meter.read_meters(job)["00000"].records, meter.read_meters(job)["00000"].bytes) == (9, 900)


def test_status_and_log_show_units_with_records_totals_and_time_left(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path / 'out'}")
    repository, recovery, _ = inline.start(request)
    attempt = repository.begin_attempt(recovery, Phase.READ, own_runner("read"))
    assert attempt is not None
    unit = UnitProgress(1234, 500, 2000, 42.0)
    with repository.fenced(recovery, attempt.epoch) as transaction:
        transaction.set_total(Phase.READ, 2, 4000)
        transaction.set_running(Phase.READ, {"00001": unit})
    assert repository.phases(recovery)[0].running == {"00001": unit}, "as the database has it"
    text = CliRunner().invoke(app, ["status", recovery]).output
    assert "unit 00001  1,234 records, 500 of 2,000 bytes, about 42 s left" in text
    shown = json.loads(CliRunner().invoke(app, ["status", recovery, "--json"]).output)["phases"][0]["running"]
    assert shown == [{"unit": "00001", "records": 1234, "bytes": 500, "bytes_total": 2000, "eta_s": 42.0}]
    capsys.readouterr()
    PhaseBars()(Progress("read", 0, 2, 1234, 500, 4000, {"00001": unit}))
    assert "1,234 records, 500 bytes" in (line := capsys.readouterr().err)
    assert "00001 25 % (1,234 records, about 42 s)" in line
    repository.close()
