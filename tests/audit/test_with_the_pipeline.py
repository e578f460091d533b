"""What other parts of cdr write, read by the second reader: quarantines and exported recovery checkpoints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdr_core.checkpoint_target.export import export_checkpoint
from cdr_core.errors import Corrupt
from cdr_core.metadata import Phase
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.verify.checkpoint import Channel, Checkpoint
from cdr_core.verify.claims import read_claims
from cdr_core.verify.spec import read_spec
from cdr_core.verify.verify import Request, verify
from tests.audit.recovered import spoil_tag, validate
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints

CHANNEL, FIRST = Channel("main", 1, 2), 30


def spoil_a_tag(source: Path, spec: Path) -> None:
    with Checkpoint(str(source)) as checkpoint:
        (exchange,) = read_spec(str(spec))
        elements = checkpoint.elements(exchange, CHANNEL).whole()
        raw = elements.data[elements.starts[FIRST] : elements.ends[FIRST]]
    spoil_tag(source, raw)


def cut_a_file(source: Path, _: Path) -> None:
    """The largest channel-state file ends early: a hole in several channels."""
    files = [path for path in source.iterdir() if path.name != "_metadata" and path.read_bytes()[:4] == b"\0\0\0\0"]
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size * 2 // 3])


def lose_a_file(source: Path, _: Path) -> None:
    next(p for p in sorted(source.iterdir()) if p.name != "_metadata" and p.read_bytes()[:4] == b"\0\0\0\0").unlink()


def recovered_from(source: Path, spec: Path, to: Path) -> dict[str, Any]:
    request = RecoveryRequest(str(source), str(spec), "2", f"parquet:{to}", on_corrupt="quarantine")
    repository, recovery, settings = inline.start(request)
    inline.run_all(repository, recovery, settings)
    receipt = repository.receipt(recovery)
    assert receipt is not None
    return dict(receipt)


@pytest.mark.parametrize("damage", [spoil_a_tag, cut_a_file, lose_a_file])
def test_a_recovery_with_quarantine_is_partial_and_every_sound_record_is_there(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, damage: Callable[[Path, Path], None]
) -> None:
    shipped = fixture_checkpoint("a_p3_thr0", 2)
    source = Path(shutil.copytree(shipped.path, tmp_path / "chk-2"))
    damage(source, shipped.spec)
    receipt = recovered_from(source, shipped.spec, tmp_path / "out")
    validate(receipt)
    assert receipt["proof"]["quarantine"]
    claims = read_claims(json.dumps(receipt).encode(), "the receipt")
    output = f"parquet:{tmp_path / 'out'}"
    report = verify(Request(str(source), output, str(shipped.spec), "2", claims))
    assert report.differences == ()
    assert (report.verdict, report.exit_code) == ("partial", 6)
    assert 0 < report.output.records < 1878
    with pytest.raises(Corrupt):
        verify(Request(str(source), output, str(shipped.spec), "2"))


@pytest.mark.parametrize("parallelism", ["2", "5"])
def test_an_exported_recovery_checkpoint_holds_every_record_of_the_source(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, parallelism: str
) -> None:
    shipped = fixture_checkpoint("a_p3_thr0", 2)
    exported = export_of(shipped, tmp_path, parallelism)
    report = verify(Request(str(shipped.path), f"checkpoint:{exported}", str(shipped.spec)))
    assert report.differences == ()
    assert report.source.records == report.output.records == 1878


def export_of(shipped: FixtureCheckpoint, folder: Path, parallelism: str) -> Path:
    request = RecoveryRequest(str(shipped.path), str(shipped.spec), parallelism, f"parquet:{folder / 'out'}")
    repository, recovery, settings = inline.start(request)
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL, Phase.DRAIN):
        inline.run(repository, recovery, phase, settings)
    number = max(row.checkpoint_id for row in repository.checkpoints(recovery))
    export_checkpoint(repository, recovery, number, str(folder / "exported"))
    return folder / "exported"
