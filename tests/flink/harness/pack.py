"""A checkpoint as a shipped fixture: its files, the oracle, and the job that made it, in one archive."""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tests.flink.harness.job import Made
from tests.flink.harness.oracle import write_oracle
from tests.support.checkpoints import FIXTURES
from tests.support.oracle import Oracle
from tests.support.relocate import JOB_FILE


def pack(made: Made, name: str, spec: Path | None) -> tuple[Path, Oracle]:
    """Writes ``tests/fixtures/flink-VERSION/NAME.tar.gz`` from the last checkpoint; the archive and the oracle.

    Without a spec, the oracle tells of the metadata only.
    """
    checkpoint = made.checkpoints[-1]
    archive = FIXTURES / f"flink-{made.job.version}" / f"{name}.tar.gz"
    archive.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cdr-flink-") as scratch:
        home = Path(scratch) / name
        for file in _files(checkpoint):
            to = home / file.relative_to(checkpoint.parent)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, to)
        about = {"place": f"file:{checkpoint.parent}", "job": asdict(made.job)}
        (home / JOB_FILE).write_text(json.dumps(about, indent=1) + "\n")
        # Read where Flink left it: absolute paths are right only there.
        text = spec.read_text() if spec else None
        oracle = write_oracle(checkpoint, text, home / f"{checkpoint.name}.oracle.jsonl.gz")
        assert oracle.elements or spec is None
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(home, name, filter=_anonymous)
    return archive, oracle


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Who made it is nobody's business."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _files(checkpoint: Path) -> Iterator[Path]:
    """The files of the checkpoint, and those beside it that its metadata names."""
    metadata = (checkpoint / "_metadata").read_bytes()
    for file in sorted(path for path in checkpoint.parent.rglob("*") if path.is_file()):
        if checkpoint in file.parents or (file.name != "_metadata" and file.name.encode() in metadata):
            yield file
