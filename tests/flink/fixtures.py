"""The shipped checkpoints that this harness made: ``python -m tests.flink.fixtures NAME…`` makes them anew.

Each is checkpoint 2 of a keyed job under back-pressure. Those of ``MADE`` (spec a) differ in the version of Flink,
which gives the version of the metadata, and in where Flink keeps state; those of ``STATEFUL`` in the state they hold.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from tests.flink.harness.job import Job, make
from tests.flink.harness.pack import pack
from tests.support.checkpoints import FIXTURES

NUMBER = 2
"""Of the checkpoint in each."""

PLACE = Path("/srv/flink")
"""Where they are made. Flink writes absolute paths into some metadata, and those should tell nothing of a machine."""

_KEYED = Job(checkpoints=1, fill_millis=3000, keys=200)
"""From 2.3 on, a job takes its checkpoint 1 by itself, as soon as it runs."""

MADE: dict[str, Job] = {
    "v4_a_p3_back_pressure": replace(_KEYED, version="1.20.5", checkpoints=2, fill_millis=2000),
    "v5_a_p3_back_pressure": replace(_KEYED, version="2.0.2", checkpoints=2, fill_millis=2000),
    "v6_a_p3_back_pressure": _KEYED,
}
for _name, _options in {
    "a_p2_file_merging": {"execution.checkpointing.file-merging.enabled": "true"},
    "a_p2_changelog_files": {
        "state.changelog.enabled": "true",
        "state.changelog.storage": "filesystem",
        "state.changelog.periodic-materialize.interval": "1s",
    },
    "a_p2_changelog_memory": {"state.changelog.enabled": "true", "state.changelog.storage": "memory"},
    "a_p2_rocksdb_incremental": {"state.backend.type": "rocksdb", "execution.checkpointing.incremental": "true"},
    "a_p2_forst_incremental": {"state.backend.type": "forst", "execution.checkpointing.incremental": "true"},
}.items():
    MADE[_name] = replace(_KEYED, parallelism=2, generators=2, flink=_options)

_SMALL = replace(_KEYED, fill_millis=2000, keys=100)
_TIMED = replace(_SMALL, job="t", fill_millis=6000)
"""Long enough for windows to have fired."""

STATEFUL: dict[str, Job] = {
    "l_p3_lists": replace(_SMALL, job="l"),
    "l_p3_lists_compressed": replace(_SMALL, job="l", flink={"execution.checkpointing.snapshot-compression": "true"}),
    "t_p3_timers": _TIMED,
    "t_p3_timers_1_20": replace(_TIMED, version="1.20.5", checkpoints=2, fill_millis=3000),
    "t_p3_timers_rocksdb": replace(
        _TIMED, flink={"state.backend.type": "rocksdb", "execution.checkpointing.incremental": "true"}
    ),
    "g_p3_finished_source": replace(_SMALL, job="g", second_records=20),
}


def main(names: list[str]) -> int:
    for name in names or (*MADE, *STATEFUL):
        job, place = (MADE | STATEFUL)[name], PLACE / name
        if job.flink.get("state.changelog.storage") == "filesystem":
            job = replace(job, flink={**job.flink, "state.changelog.dstl.dfs.base-path": place.as_uri()})
        shutil.rmtree(place, ignore_errors=True)
        try:
            made = make(job, place)
            if made.checkpoints[-1].name != f"chk-{NUMBER}":
                print(f"{name}: Flink took {made.checkpoints[-1].name} instead of chk-{NUMBER}; try again")
                return 1
            archive, oracle = pack(made, name, _spec(job))
        finally:
            shutil.rmtree(place, ignore_errors=True)
        print(f"{archive.name}: {archive.stat().st_size} bytes, {oracle.summary['elements']}")
    return 0


def _spec(job: Job) -> Path | None:
    """None for job t: an oracle tells channels apart by gate, and it has two exchanges into gate 0."""
    return None if job.job == "t" else FIXTURES / "specs" / f"{'a' if job.job == 'l' else job.job}.yaml"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
