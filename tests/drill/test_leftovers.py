"""What dead drills leave, and what the sweep may and may not take."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest
from sqlalchemy import update

from cdr_core.drill import finish as end
from cdr_core.drill import scratch
from cdr_core.drill.leftovers import DEAD, GRACE, OVER, is_dead, sweep_all
from cdr_core.drill.run import by_this_process
from cdr_core.drill.scratch import place_of, remove
from cdr_core.drill.start import DrillRequest, begin
from cdr_core.errors import Refused, StorageError
from cdr_core.metadata import Drill, DrillOutcome, DrillProcess, Phase, RecoveryState
from cdr_core.metadata.drills import new_drill_id
from cdr_core.metadata.models import DrillRow
from cdr_core.runtime.pin_file import pin_file_of
from cdr_core.spark.processes import start_time
from cdr_core.storage import storage_for
from cdr_core.sweep import Left
from tests.drill.conftest import Rehearsal
from tests.support.bucket import Bucket
from tests.support.inline import run

GONE = DrillProcess(2**22 + 1, "1@gone")


def begun(rehearsal: Rehearsal, process: DrillProcess | None, *, phases: int = 4) -> Drill:
    """A drill whose runner came as far as that phase."""
    asked = DrillRequest(new_drill_id(), run="shell", process=process)
    drill = begin(rehearsal.repository, rehearsal.settings, rehearsal.plan(), asked)
    assert drill is not None
    assert drill.recovery_id is not None
    for phase in list(Phase)[:phases]:
        run(rehearsal.repository, drill.recovery_id, phase, rehearsal.settings)
    return drill


def test_a_dead_drill_is_ended_and_its_scratch_goes_after_a_dry_run_that_says_so(rehearsal: Rehearsal) -> None:
    drill = begun(rehearsal, GONE)
    files = rehearsal.left()
    assert files, "the drain has prepared its output"
    dry = sweep_all(rehearsal.repository, rehearsal.settings, dry_run=True)
    place = place_of(drill.id, rehearsal.settings)
    assert dry.ended == (drill.id,)
    (found,) = [leftover for leftover in dry.report.leftovers if leftover.path == place]
    assert (found.why, found.removable, found.removed) == (DEAD, True, False)
    assert found.bytes == sum(file.stat().st_size for file in files)
    assert rehearsal.left() == files
    assert rehearsal.repository.drill(drill.id).result is None
    done = sweep_all(rehearsal.repository, rehearsal.settings)
    assert [leftover.removed for leftover in done.report.leftovers if leftover.path == place] == [True]
    ended = rehearsal.repository.drill(drill.id)
    assert ended.result is DrillOutcome.COULD_NOT_RUN
    assert drill.recovery_id is not None
    assert rehearsal.repository.recovery(drill.recovery_id).state is RecoveryState.CANCELLED
    assert rehearsal.left() == []
    assert sweep_all(rehearsal.repository, rehearsal.settings).report.leftovers == ()


def test_a_drill_that_is_found_dead_long_after_its_time_did_not_time_out(rehearsal: Rehearsal) -> None:
    drill = begun(rehearsal, None, phases=1)
    ago = timedelta(seconds=drill.args.give_up_s or 0) + GRACE + timedelta(minutes=1)
    with rehearsal.repository._database.write() as session:
        earlier = update(DrillRow).where(DrillRow.id == drill.id).values(started_at=drill.started_at - ago)
        session.execute(earlier)
    assert sweep_all(rehearsal.repository, rehearsal.settings).ended == (drill.id,)
    ended = rehearsal.repository.drill(drill.id)
    assert ended.result is DrillOutcome.COULD_NOT_RUN
    assert ended.error == "recovered: The process that ran the drill is gone."


def test_a_drill_that_lives_keeps_everything(rehearsal: Rehearsal) -> None:
    pid = os.getpid()
    drill = begun(rehearsal, DrillProcess(pid, start_time(pid)))
    files = rehearsal.left()
    swept = sweep_all(rehearsal.repository, rehearsal.settings)
    assert swept.ended == ()
    assert rehearsal.left() == files
    assert rehearsal.repository.drill(drill.id).result is None


def test_what_a_drill_left_that_was_killed_after_its_verdict_goes(rehearsal: Rehearsal) -> None:
    drill = begun(rehearsal, None)
    rehearsal.repository.end_drill(drill.id, DrillOutcome.PASSED)
    swept = sweep_all(rehearsal.repository, rehearsal.settings)
    assert OVER in {leftover.why for leftover in swept.report.leftovers}
    assert rehearsal.left() == []
    assert drill.recovery_id is not None
    workspace = Path(rehearsal.repository.recovery(drill.recovery_id).workspace)
    assert not list(workspace.rglob("prepared*"))


def test_what_no_drill_explains_stays(rehearsal: Rehearsal, tmp_path: Path) -> None:
    places = Path(rehearsal.settings.drill_scratch)
    for name in ("d-0123456789", "mine", "d-../../etc"):
        (places / name.replace("/", "_")).mkdir(parents=True)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    (places / "d-aaaaaaaaaa").symlink_to(tmp_path / "precious")
    swept = sweep_all(rehearsal.repository, rehearsal.settings)
    assert swept.report.leftovers == ()
    assert {left.why for left in swept.report.left} == {"no drill of this name is in the database"}
    assert len(list(places.iterdir())) == 4
    assert (tmp_path / "precious" / "file").exists()


def test_a_dead_drill_no_longer_pins_its_checkpoint_and_leaves_the_pins_of_others(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDR_PIN_FILES", "true")
    drill = begun(rehearsal, GONE, phases=1)
    assert drill.recovery_id is not None
    ours = Path(pin_file_of(str(rehearsal.checkpoint), drill.recovery_id))
    others = Path(pin_file_of(str(rehearsal.checkpoint), "r-0123456789"))
    assert ours.is_file()
    others.write_bytes(ours.read_bytes())
    sweep_all(rehearsal.repository, rehearsal.settings)
    assert not ours.exists()
    assert others.is_file()


def test_what_goes_while_it_is_measured_and_what_cannot_be_looked_at_stop_no_sweep(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drill = begun(rehearsal, GONE)
    tier = tmp_path / "tier"
    tier.mkdir()
    monkeypatch.setenv("CDR_SPILL_DIRS", str(tier))
    going = rehearsal.left()[0]
    lstat, iterdir = Path.lstat, Path.iterdir

    def gone_by_now(path: Path) -> os.stat_result:
        if path == going:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return lstat(path)

    def closed(path: Path) -> Iterator[Path]:
        if path == tier:
            raise PermissionError(13, "Permission denied", str(path))
        return iterdir(path)

    with monkeypatch.context() as faults:
        faults.setattr(Path, "lstat", gone_by_now)
        faults.setattr(Path, "iterdir", closed)
        swept = sweep_all(rehearsal.repository, rehearsal.settings)
    assert swept.ended == (drill.id,)
    assert Left(str(tier), "it cannot be looked at: Permission denied") in swept.report.left


def test_a_storage_that_does_not_answer_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(place: str) -> NoReturn:
        raise StorageError(f"{place} does not answer")

    monkeypatch.setattr(scratch, "_objects", away)
    assert scratch.size_of("s3://bucket/d-0123456789") == 0


def test_a_place_that_does_not_bear_the_drills_name_is_not_removed(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is not the scratch of drill"):
        remove(str(tmp_path), "d-0123456789")
    (tmp_path / "d-0123456789").symlink_to(tmp_path)
    with pytest.raises(Refused, match="is a link"):
        remove(str(tmp_path / "d-0123456789"), "d-0123456789")
    assert tmp_path.is_dir()


@pytest.mark.parametrize("name", ["", "d-012345678", "d-0123456789\n", "d-0123456789/..", "r-0123456789"])
def test_what_is_no_id_of_a_drill_has_no_place(rehearsal: Rehearsal, name: str) -> None:
    with pytest.raises(Refused, match="is not the id of a drill"):
        place_of(name, rehearsal.settings)


def test_who_is_dead(rehearsal: Rehearsal) -> None:
    drill = begun(rehearsal, None, phases=0)
    limit = timedelta(seconds=drill.args.give_up_s or 0)
    assert not is_dead(drill, datetime.now(UTC))
    assert not is_dead(drill, drill.started_at + limit + GRACE)
    assert is_dead(drill, drill.started_at + limit + GRACE + timedelta(seconds=1))
    ended = rehearsal.repository.end_drill(drill.id, DrillOutcome.FAILED)
    assert not is_dead(ended, drill.started_at + timedelta(days=3650))
    mine = by_this_process().process
    assert mine is not None
    assert mine.pid == os.getpid()


def test_files_of_a_recovery_that_ended_long_ago_go_and_its_receipt_stays_in_the_database(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    drill = rehearsal.drill()
    assert drill.recovery_id is not None
    workspace = Path(rehearsal.repository.recovery(drill.recovery_id).workspace)
    assert [path.name for path in workspace.rglob("receipt.json")] == ["receipt.json"]
    sweep_all(rehearsal.repository, rehearsal.settings)
    assert [path.name for path in workspace.rglob("receipt.json")] == ["receipt.json"]
    monkeypatch.setenv("CDR_SWEEP_AFTER", "0s")
    swept = sweep_all(rehearsal.repository, rehearsal.settings)
    assert {leftover.why.split(",")[0] for leftover in swept.report.leftovers} == {"its recovery was over long ago"}
    assert not workspace.exists()
    assert rehearsal.repository.receipt(drill.recovery_id) is not None


def test_a_drill_may_rehearse_from_s3_to_s3(
    rehearsal: Rehearsal, bucket: Bucket, monkeypatch: pytest.MonkeyPatch, another: Callable[[int], Path]
) -> None:
    root = bucket.uri()
    monkeypatch.setenv("CDR_DRILL_SCRATCH", root)
    place = bucket.upload(rehearsal.checkpoint)
    drill = rehearsal.drill(rehearsal.plan(checkpoints=place))
    assert drill.result is DrillOutcome.PASSED, drill.checks
    assert drill.args.target.startswith(f"parquet:{root}/")
    assert bucket.keys(root) == []
    left = f"{root}/{drill.id}/output/part.parquet"
    storage_for(left).create(left, b"rows")
    local = Path(rehearsal.settings.home) / "drills" / drill.id
    local.mkdir(parents=True)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("cdr_core.drill.finish.host_id", lambda: "another host")
        end.clean_up(rehearsal.repository, rehearsal.settings, drill)
        assert bucket.keys(root) == [], "objects are the same from every host"
        end.clean_up(rehearsal.repository, rehearsal.settings, with_scratch(drill, str(local)))
        assert local.exists(), "the disks of another host are not ours"
    end.clean_up(rehearsal.repository, rehearsal.settings, with_scratch(drill, str(local)))
    assert not local.exists()


def with_scratch(drill: Drill, place: str) -> Drill:
    return replace(drill, args=msgspec.structs.replace(drill.args, scratch=place))
