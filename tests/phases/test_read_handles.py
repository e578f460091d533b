"""What `read` opens it closes: nothing of the checkpoint stays open or mapped in a worker that lives on."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdr_core.metadata import Phase
from cdr_core.phases import read
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.runtime.unit_progress import Meter
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints


def open_below(directory: Path) -> set[str]:
    """Files below it that this process has open or mapped."""
    found = {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    for handle in Path("/proc/self/fd").iterdir():
        try:
            found.add(str(handle.readlink()))
        except FileNotFoundError:  # that of the listing itself
            continue
    return {name for name in found if name.startswith(f"{directory}/")}


@pytest.mark.seed("002-46")
@pytest.mark.parametrize("on_corrupt", ["fail", "quarantine"])
def test_no_file_of_the_checkpoint_is_open_after_read(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_corrupt: str
) -> None:
    """While a channel is scanned its file is open; when the task has returned, none is."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    source = checkpoint.copy(tmp_path / "source")
    request = RecoveryRequest(
        str(source), str(checkpoint.spec), "2", f"parquet:{tmp_path / 'out'}", on_corrupt=on_corrupt
    )
    during: set[str] = set()

    class Looking(Meter):
        def add(self, records: int, size: int) -> None:
            during.update(open_below(settings.home))
            super().add(records, size)

    monkeypatch.setattr(read, "Meter", Looking)
    repository, recovery, settings = inline.start(request)
    inline.run(repository, recovery, Phase.READ, settings)
    assert any("/pins/" in name for name in during), "the channel was open while it was scanned"
    assert open_below(source) == {name for name in open_below(settings.home) if "/pins/" in name} == set()
    repository.close()
