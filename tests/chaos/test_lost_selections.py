"""Selections that are damaged or gone after filter is DONE: the task that spills selects their parts again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cdr_core.metadata import Phase
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.storage import storage_for
from tests.support import inline, output
from tests.support.bucket import Bucket
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.comparing import compare
from tests.support.draining import Started

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda data: b"",
    "zeroed": lambda data: bytes(len(data)),
    "truncated": lambda data: data[: len(data) // 2],
    "a flipped byte": lambda data: _flipped(data, 3 * len(data) // 4),
}
"""What a power cut or a disk makes of a file whose name is durable."""


def _flipped(data: bytes, place: int) -> bytes:
    """In the second half of a selection lies the second subtask's block, whose middle is runs: it still parses."""
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def hurt(uri: str, how: str) -> None:
    storage = storage_for(uri)
    data = storage.read(uri)
    storage.delete(uri)
    if how != "deleted":
        assert storage.create(uri, DAMAGES[how](data))


def filtered(checkpoint: FixtureCheckpoint, to: Path, source: str = "") -> Started:
    """A recovery that is ready to be spilled."""
    request = RecoveryRequest(source or str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{to}")
    started = inline.start(request)
    for phase in (Phase.READ, Phase.FILTER):
        inline.run(started[0], started[1], phase, started[2])
    return started


def finish(started: Started, checkpoint: FixtureCheckpoint, to: Path) -> int:
    """Recover the rest, compare it with what Flink read; return how many parts were selected again."""
    repository, recovery, settings = started
    assert inline.run_all(repository, recovery, settings)["verdict"] == "balanced"
    compare(output.rows(to), checkpoint, 2)
    return sum(row.result.get("selected_again", 0) for row in repository.units(recovery, Phase.SPILL))


def left_by_filter(started: Started, name: str = "selection") -> list[str]:
    return [str(row.result[name]) for row in started[0].units(started[1], Phase.FILTER)]


@pytest.mark.parametrize("how", [*DAMAGES, "deleted"])
def test_a_lost_selection_is_made_again_by_spill(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("CDR_SPLIT_SIZE", "16KiB")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    started = filtered(checkpoint, tmp_path / "out")
    hurt(left_by_filter(started)[0], how)
    assert finish(started, checkpoint, tmp_path / "out") > 0


def test_a_sound_selection_is_used(fixture_checkpoint: FixtureCheckpoints, tmp_path: Path) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    assert finish(filtered(checkpoint, tmp_path / "out"), checkpoint, tmp_path / "out") == 0


@pytest.mark.parametrize("how", [*DAMAGES, "deleted"])
def test_a_spill_set_and_its_selection_that_are_both_lost_are_made_again_by_the_drain(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, how: str
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    started = filtered(checkpoint, tmp_path / "out")
    repository, recovery, settings = started
    inline.run(repository, recovery, Phase.SPILL, settings)
    for uri in left_by_filter(started):
        hurt(uri, how)
    hurt(repository.spill_sets(recovery)[0].files[0].path, how)
    finish(started, checkpoint, tmp_path / "out")


@pytest.mark.parametrize("what", ["selection", "carried"])
@pytest.mark.parametrize("how", ["a flipped byte", "deleted"])
def test_on_s3_the_runs_and_their_carried_bytes_are_verified_and_made_again(
    bucket: Bucket, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    how: str, what: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("CDR_WORKSPACE", bucket.uri())
    monkeypatch.setenv("CDR_SCRATCH", str(tmp_path / "scratch"))
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    started = filtered(checkpoint, tmp_path / "out", bucket.upload(checkpoint.path))
    hurt(left_by_filter(started, what)[0], how)
    assert finish(started, checkpoint, tmp_path / "out") > 0
