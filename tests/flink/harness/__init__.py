"""A real Flink for tests: make checkpoints, read them with Flink's own classes, restore them and judge the result."""

from tests.flink.harness.job import Job, Made, go_on, make
from tests.flink.harness.judge import TimedVerdict, Verdict, judge, judge_timed
from tests.flink.harness.oracle import write_oracle
from tests.flink.harness.packages import FlinkUnavailable, install
from tests.flink.harness.restore import restore

__all__ = [
    "FlinkUnavailable",
    "Job",
    "Made",
    "TimedVerdict",
    "Verdict",
    "go_on",
    "install",
    "judge",
    "judge_timed",
    "make",
    "restore",
    "write_oracle",
]
