"""Tiers are refused before anything runs when they cannot work; the sentence names the directory and the setting."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from cdr_core import settings as settings_module
from cdr_core.errors import SettingsRefused
from cdr_core.recovery.recovery_request import RecoveryRequest, check, create_in
from cdr_core.settings import GIB, KIB, MIB, SpillDir
from cdr_core.spill import tiers
from cdr_core.spill.capacity_check import refuse_unfit
from cdr_core.spill.reservations import Reservations
from cdr_core.spill.tiers import Space, Tier, room_in, tiers_of
from tests.support import draining
from tests.support.checkpoints import FixtureCheckpoints

DISK = Space(exists=True, writable=True, device=1, total=100 * GIB, free=10 * GIB)
SHM = Space(exists=True, writable=True, device=2, total=4 * GIB, free=3 * GIB)


@pytest.mark.seed("E15", "E16")
@pytest.mark.parametrize(
    ("tier", "space", "says"),
    [
        (Tier("/fast", GIB), Space(exists=False), "/fast does not exist"),
        (Tier("/fast", GIB), Space(exists=False, occupied=True), "/fast is not a directory"),
        (Tier("/fast", GIB), dataclasses.replace(DISK, writable=False), "/fast cannot be written"),
        (Tier("/fast", 100), DISK, "/fast has a capacity of 100 bytes, less than a segment"),
        (Tier("/fast", 200 * GIB), DISK, "/fast has a capacity of .* on a file system of"),
        (Tier("/fast", GIB), DISK, "/fast can take 1073741824 bytes, and up to 5368709120 will be spilled"),
        (Tier("/fast", None), SHM, "/fast can take 3221225472 bytes"),
    ],
)
def test_a_tier_that_cannot_work_is_refused_by_name(tier: Tier, space: Space, says: str) -> None:
    """Missing, read-only, without sense or without room; known when the plan is made."""
    with pytest.raises(SettingsRefused, match=says) as refused:
        tiers.check([tier], [space], 5 * GIB, MIB, "CDR_SPILL_DIRS")
    assert "CDR_SPILL_DIRS" in str(refused.value)
    assert refused.value.exit_code == 3


@pytest.mark.seed("E16")
def test_a_file_in_the_place_of_a_tier_is_not_taken_for_nothing(tmp_path: Path) -> None:
    """The error says that it is a file and not that it does not exist."""
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    assert tiers.look(Tier(str(tmp_path / "file"), None)) == Space(exists=False, occupied=True)
    assert tiers.look(Tier(str(tmp_path / "dangling"), None)) == Space(exists=False, occupied=True)
    assert tiers.look(Tier(str(tmp_path / "none"), None)) == Space(exists=False)


def test_tiers_on_one_file_system_share_what_it_has_free() -> None:
    both = [Tier("/a", 8 * GIB), Tier("/b", 8 * GIB)]
    assert room_in(both, [DISK, DISK]) == 10 * GIB
    assert room_in(both, [DISK, SHM]) == 11 * GIB
    assert room_in([Tier("/a", None), Tier("/b", None)], [DISK, SHM]) == 13 * GIB


@pytest.mark.seed("E15")
def test_what_other_recoveries_hold_of_a_tier_is_not_there(tmp_path: Path) -> None:
    """Two recoveries that fit one by one are not both let in."""
    assert room_in([Tier("/a", 8 * GIB)], [dataclasses.replace(DISK, reserved=5 * GIB)]) == 3 * GIB
    assert room_in([Tier("/a", 8 * GIB)], [dataclasses.replace(DISK, reserved=9 * GIB)]) == 0
    directory = SpillDir(str(tmp_path), 100 * KIB)
    refuse_unfit([directory], str(tmp_path), 60 * KIB, KIB, MIB)
    refuse_unfit([directory], str(tmp_path), 100 * KIB, KIB, MIB)
    assert Reservations(Tier(*dataclasses.astuple(directory)), "r-other", 1).take(50 * KIB)
    with pytest.raises(SettingsRefused, match=f"can take {50 * KIB} bytes besides {50 * KIB} that other recoveries"):
        refuse_unfit([directory], str(tmp_path), 60 * KIB, KIB, MIB)
    refuse_unfit([directory], str(tmp_path), 60 * KIB, KIB, MIB, own={"r-other"})


def test_a_tier_inside_another_is_refused() -> None:
    with pytest.raises(SettingsRefused, match=re.escape("/disk and /disk/fast overlap")):
        tiers.check([Tier("/disk", GIB), Tier("/disk/fast", GIB)], [DISK, DISK], 1, MIB, "CDR_SPILL_DIRS")


def test_one_directory_under_two_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    names = [Tier(str(tmp_path / name), GIB) for name in ("disk", "link")]
    with pytest.raises(SettingsRefused, match=r"disk and .*link overlap"):
        tiers.check(names, [DISK, DISK], 1, MIB, "CDR_SPILL_DIRS")


def test_without_spill_directories_the_workspace_is_the_one_tier(tmp_path: Path) -> None:
    assert tiers_of((), f"{tmp_path}/r-1") == (Tier(str(tmp_path), None),)
    assert tiers_of([SpillDir("/shm", 5)], f"{tmp_path}/r-1") == (Tier("/shm", 5),)
    refuse_unfit((), str(tmp_path / "not" / "yet"), 1, MIB, 256 * MIB)
    with pytest.raises(SettingsRefused, match="will be spilled"):
        refuse_unfit((), str(tmp_path), 1 << 60, MIB, 256 * MIB)
    (tmp_path / "r-1").mkdir()
    (tmp_path / "r-1" / "own").write_bytes(bytes(MIB))
    with pytest.raises(SettingsRefused, match=f"up to {(1 << 60) - MIB} will be spilled"):
        refuse_unfit((), str(tmp_path), 1 << 60, MIB, 256 * MIB, own={"r-1"})


def test_segments_that_do_not_fit_the_memory_budget_are_refused() -> None:
    with pytest.raises(SettingsRefused, match="CDR_MEMORY_BUDGET"):
        refuse_unfit((), "/", 1, MIB, 7 * MIB)


@pytest.mark.seed("002-27", "E16")
@pytest.mark.parametrize("tier", ["missing", "small"])
def test_a_recovery_is_refused_before_its_row_exists(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tier: str
) -> None:
    """Spilling is on, and what is configured for it cannot work."""
    (tmp_path / "small").mkdir()
    capacity = 1 if tier == "missing" else 8 * KIB
    monkeypatch.setenv("CDR_SPILL_DIRS", f"{tmp_path / tier}:{capacity}")
    monkeypatch.setenv("CDR_SEGMENT_SIZE", "4KiB")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path / 'out'}")
    with pytest.raises(SettingsRefused, match=str(tmp_path / tier)):
        check(request, settings_module.load())


@pytest.mark.seed("E16")
def test_asking_for_a_recovery_again_is_not_refused_for_what_it_holds_itself(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tier is full of its own spill; a retry attaches to it, another recovery is refused."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("CDR_SPILL_DIRS", f"{tmp_path / 'shm'}:400KB")
    monkeypatch.setenv("CDR_SEGMENT_SIZE", "4KiB")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path / 'out'}")
    repository, recovery, settings = draining.spilled(request)
    assert create_in(repository, request, settings)[0].id == recovery
    with pytest.raises(SettingsRefused, match="that other recoveries hold"):
        create_in(repository, dataclasses.replace(request, to=f"parquet:{tmp_path / 'else'}"), settings)
    repository.close()
