"""Which recoveries are recorded, and at which stops: the fault points that follow a durable step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cdr_core.metadata.states import Phase
from tests.versions.frozen import OUT, ROOT, SOURCE, SPEC

FIXTURE = ("a_p3_thr0", 1)
"""A shipped checkpoint of few bytes, but with enough pages to be cut while it is drained."""

EVERY_PHASE = ("before-result", "after-result", "after-record", "before-done", "after-done")
OWN_STEPS = {
    Phase.READ: ("read.plan-written",),
    Phase.SPILL: ("spill.files-durable", "spill.sealed"),
    Phase.DRAIN: ("drain.prepared",),
    Phase.COMMIT: ("commit.intent", "publish.after", "commit.recorded"),
}
PHASE_STEPS = {phase: (*OWN_STEPS.get(phase, ()), *(f"{phase}.{step}" for step in EVERY_PHASE)) for phase in Phase}
CUT_STEPS = (
    "checkpoint.begun",
    "checkpoint.asked",
    "drain.cut-prepared",
    "drain.taken-over",
    "drain.snapshot",
    "checkpoint.manifest",
    "checkpoint.completed",
    "checkpoint.completed then drain.cut-prepared",
)
PUBLISHING_STEPS = (
    "checkpoint.completed",
    "commit.intent",
    "publish.after",
    "commit.recorded",
    "listener.after",
    "coordinator.saved",
    "listener.after then commit.intent",
    "listener.after then publish.after",
)
ONE_PASS_STEPS = ("onepass.prepared", "onepass.after-record", "onepass.read.after-done", "onepass.drain.after-done")
REWRITING_STEPS = (
    "channels.joined",
    "commit.after-record",
    "commit.assembled",
    "commit.intent",
    "publish.after",
    "commit.recorded",
    "commit.before-done",
    "commit.receipt-beside",
)

SMALL = {"CDR_PAGE_SIZE": "4KiB", "CDR_MEMORY_BUDGET": "64KiB", "CDR_SEGMENT_SIZE": "8KiB"}
"""Small pages, and few of them: a drain of many steps."""
SLOWLY = "drain.page=sleep:0.004"
LAKE = {
    "PYICEBERG_CATALOG__LAKE__TYPE": "sql",
    "PYICEBERG_CATALOG__LAKE__URI": f"sqlite:///{ROOT}/lake.db",
    "PYICEBERG_CATALOG__LAKE__WAREHOUSE": f"file://{ROOT}/lake",
}


@dataclass(frozen=True)
class Series:
    """A recovery, and the stops at which it is recorded besides its end.

    A stop ``A then B`` is a death at A, and one of the next attempt at B. ``threads``: tasks run
    beside the driver, slowly, so that it can cut them. ``created``: also as it is before its first attempt.
    """

    name: str
    to: str
    stops: Mapping[Phase, tuple[str, ...]] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    threads: bool = False
    damage: bool = False
    parallelism: str = "2"
    created: bool = False

    @property
    def command(self) -> str:
        """As a user would start it."""
        options = "".join(map(_as_option, self.options.items()))
        return f"cdr recover {SOURCE} --spec {SPEC} --parallelism {self.parallelism} --to {self.to}{options}"


def _as_option(option: tuple[str, Any]) -> str:
    name, value = option
    flag = f" --{name.replace('_', '-')}"
    return flag if value is True else f"{flag} {value[0] if isinstance(value, tuple) else value}"


PARQUET, REWRITTEN = f"parquet:{OUT}", f"checkpoint:{OUT}"
LAKE_STOPS = {Phase.COMMIT: ("commit.intent", "publish.after")}
CUT = {"checkpoint_interval": "10ms"}
EXPORT = Series("export", PARQUET, {}, SMALL, CUT, threads=True)
SPARK = Series("spark", PARQUET)
DRILL = Series("drill", "")
SERIES = (
    Series("parquet", PARQUET, PHASE_STEPS, created=True),
    Series("checkpointing", PARQUET, {Phase.DRAIN: CUT_STEPS}, SMALL, CUT, threads=True),
    Series(
        "per-checkpoint",
        PARQUET,
        {Phase.DRAIN: PUBLISHING_STEPS},
        {**SMALL, "CDR_COMMIT": "per-checkpoint"},
        CUT,
        threads=True,
    ),
    Series(
        "quarantine",
        PARQUET,
        {Phase.READ: ("read.after-done",), Phase.DRAIN: ("drain.after-done",)},
        options={"on_corrupt": "quarantine"},
        damage=True,
    ),
    Series(
        "checkpoint",
        REWRITTEN,
        {Phase.DRAIN: ("checkpoint.completed", "drain.after-done"), Phase.COMMIT: REWRITING_STEPS},
        SMALL,
        CUT,
        threads=True,
    ),
    Series("checkpoint-same", REWRITTEN, {Phase.COMMIT: ("state.copied",)}, parallelism="same"),
    Series(
        "one-pass",
        PARQUET,
        {Phase.READ: ONE_PASS_STEPS},
        {
            "CDR_PAGE_SIZE": "4KiB",
            "CDR_MEMORY_BUDGET": "8KiB",
            "CDR_SEGMENT_SIZE": "512",
            "CDR_SPILL_DIRS": str(ROOT / "spill"),
            "CDR_RECOVER_OUTPUT_DOWNSTREAM": "true",
            "CDR_CHECKPOINT_DURING_RECOVERY": "true",
        },
        {"one_pass": True},
    ),
    Series("iceberg", "iceberg:lake/db.rows", LAKE_STOPS, LAKE),
    Series("paimon", f"paimon:{ROOT}/warehouse/db.rows", LAKE_STOPS),
    Series("none", "none:"),
    Series("without-raw", PARQUET, environment={"CDR_TABLE_RAW": "false"}),
    Series("drop-records", PARQUET, {Phase.READ: ("read.after-done",)}, options={"drop_records": ("main:0:0:0-1",)}),
)
