"""A checkpoint restored by a real Flink, which then runs to the end of its input."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.flink.harness.job import Job, restored, run_job
from tests.flink.harness.judge import Seen


def restore(job: Job, checkpoint: Path, parallelism: int) -> Seen:
    """Restores at this parallelism, by Flink's own rescaling where it differs; what the job saw until it finished."""
    with tempfile.TemporaryDirectory(prefix="cdr-flink-seen-") as seen:
        lines = run_job(restored(job, checkpoint, parallelism), seen=Path(seen))
        return Seen.read(Path(seen), sum(line.startswith("rescaling ") for line in lines))
