"""Recoveries to look at: real ones, run inline, and as many rows as anybody will ever have."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import insert, update

from cdr_core.errors import CdrError
from cdr_core.metadata import (
    CommandState,
    DrillArgs,
    DrillOutcome,
    NewRecovery,
    Phase,
    PhaseState,
    PlannedEnds,
    PlanSummary,
    RecoveryCheckpointState,
    RecoveryOptions,
    RecoveryState,
    Repository,
    Runner,
)
from cdr_core.metadata.models import (
    AttemptRow,
    CommandRow,
    DrillResultRow,
    DrillRow,
    PhaseRow,
    RecoveryCheckpointRow,
    RecoveryRow,
    SourceCheckpointRow,
)
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoint

HOSTILE = "<img src=x onerror=window.taken=1><script>window.taken=1</script>"
"""A job's name as nobody should give one."""


CANARY = "canary-of-the-page-41c7"
"""A secret of the server's environment that got into the database all the same."""


def recovered(checkpoint: FixtureCheckpoint, out: Path) -> str:
    """A recovery from 3 to 2 that is done; its id."""
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{out}")
    repository, recovery, settings = inline.start(request)
    with repository:
        inline.run_all(repository, recovery, settings)
    return recovery


def give_away(repository: Repository, recovery: str) -> None:
    """The canary wherever people's and drivers' own words are kept: spec, plan, errors, reasons. Its target, and so the
    receipt, hold it already where the recovery was made with one.
    """
    now, told = datetime.now(UTC), f"denied for {CANARY}"
    known = repository.recovery(recovery)
    row = {"recovery_id": recovery, "epoch": 4}
    with repository._database.write() as session:
        words = {"spec": f"{known.spec}\n# {told}\n", "workspace": f"/w/{CANARY}"}
        assert known.plan_summary is not None, "read made a plan"
        plan: dict[str, Any] = msgspec.to_builtins(known.plan_summary)
        plan["exchanges"][0]["partitioner"] = told
        session.execute(update(RecoveryRow).where(RecoveryRow.id == recovery).values(**words, plan_summary=plan))
        session.execute(update(AttemptRow).where(AttemptRow.recovery_id == recovery).values(error=told))
        session.execute(
            insert(CommandRow),
            row
            | {"kind": "checkpoint", "args": {}, "state": CommandState.REFUSED, "answered_at": now}
            | {"answer": {"reason": told}},
        )
        aborted = {"checkpoint_id": 99, "state": RecoveryCheckpointState.ABORTED, "reason": told, "ended_at": now}
        session.execute(insert(RecoveryCheckpointRow), row | aborted)


def overtaken(checkpoint: FixtureCheckpoint, out: Path) -> str:
    """A recovery whose filter was begun twice, by a run with a hostile job's name, and goes on."""
    spec = checkpoint.spec.read_text().split("\n", 1)[1]
    assert "job:" in checkpoint.spec.read_text().split("\n", 1)[0]
    request = RecoveryRequest(str(checkpoint.path), f'job: "{HOSTILE}"\n{spec}', "2", f"parquet:{out}")
    repository, recovery, settings = inline.start(request)
    with repository:
        inline.run(repository, recovery, Phase.READ, settings)
        for number in (1, 2):
            repository.begin_attempt(recovery, Phase.FILTER, Runner("manual__1", "filter", number, "worker-1", 4711))
    return recovery


def created(checkpoint: FixtureCheckpoint, folder: Path) -> str:
    """A recovery that nobody has begun."""
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{folder / 'waiting'}")
    repository, recovery, _ = inline.start(request)
    repository.close()
    return recovery


def partial(checkpoint: FixtureCheckpoint, folder: Path) -> str:
    """A recovery of a checkpoint whose largest file was cut: what is before the damage was published."""
    cut = checkpoint.copy(folder / "cut")
    largest = max(cut.iterdir(), key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    target = f"parquet:{folder / 'sound'}"
    request = RecoveryRequest(str(cut), str(checkpoint.spec), "2", target, on_corrupt="quarantine")
    repository, recovery, settings = inline.start(request)
    with repository:
        inline.run_all(repository, recovery, settings)
    return recovery


def failed(checkpoint: FixtureCheckpoint, folder: Path) -> str:
    """A recovery of a damaged checkpoint: its read fails with a sentence."""
    damaged = checkpoint.copy(folder / "damaged")
    request = RecoveryRequest(str(damaged), str(checkpoint.spec), "2", f"parquet:{folder / 'never'}")
    repository, recovery, settings = inline.start(request)
    for file in damaged.iterdir():
        if file.name != "_metadata":
            file.write_bytes(b"\xff" * file.stat().st_size)
    with repository, pytest.raises(CdrError):
        inline.run(repository, recovery, Phase.READ, settings)
    return recovery


def wide(repository: Repository, old: int = 128, new: int = 96, senders: int = 1) -> str:
    """A recovery of many subtasks that drains: rows alone, of the shape that key groups give them."""
    recovery, _ = repository.create_recovery(
        NewRecovery(
            source="/checkpoints/orders/4f1c/chk-881",
            metadata_sha256="cd" * 32,
            target="iceberg:lake/recovered.orders",
            spec="job: orders-enrichment\nexchanges: []\n",
            parallelism=str(new),
            workspace="/workspace",
            flink_checkpoint_id=881,
            options=RecoveryOptions(on_corrupt="fail"),
        )
    )
    plan = PlanSummary(
        exchanges=(PlannedEnds("orders", (old, old), (old, new), "hash"),),
        source_modified=(datetime.now(UTC) - timedelta(minutes=4)).isoformat(),
    )
    source = list(_shares(old, new, senders))
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL):
        with _attempt(repository, recovery.id, phase) as transaction:
            if phase is Phase.READ:
                transaction.save_plan("ab" * 32, "/workspace/plan.json", plan)
            transaction.set_total(phase, 1, sum(line["bytes"] for line in source))
            records, size = (sum(line[name] for line in source) for name in ("records", "bytes"))
            transaction.record_unit(phase, "only", f"/{phase}.json", records, size, {})
            lines = [line | {"new_down": None} for line in source] if phase is Phase.READ else source
            transaction.add_ledger(phase, lines)
            transaction.finish_phase(phase, {"records": records})
    with _attempt(repository, recovery.id, Phase.DRAIN) as transaction:
        transaction.set_total(Phase.DRAIN, new, size)
        for subtask in range(new // 3):
            transaction.record_unit(Phase.DRAIN, f"{subtask:05d}", "/d.json", records // new, size // new, {})
    return recovery.id


def _attempt(repository: Repository, recovery: str, phase: Phase) -> Any:
    attempt = repository.begin_attempt(recovery, phase, Runner("manual__2", str(phase), 1, "worker-2", 99))
    assert attempt is not None
    return repository.fenced(recovery, attempt.epoch)


def _shares(old: int, new: int, senders: int) -> Iterator[dict[str, Any]]:
    """Ledger lines as rescaling by ranges gives them: each old subtask overlaps one to three new ones."""
    draw = random.Random(7)
    for down in range(old):
        for new_down in range(new):
            overlap = min((down + 1) / old, (new_down + 1) / new) - max(down / old, new_down / new)
            if overlap > 0:
                records = int(overlap * old * draw.randint(500, 4000))
                for up in range(senders):
                    key = {"exchange": "orders", "up": up, "down": down, "new_down": new_down}
                    yield key | {"records": records, "bytes": records * 180, "others": {}}


def many(repository: Repository, number: int) -> None:
    """That many recoveries and as many drills, over a year, in every state."""
    draw, now = random.Random(11), datetime.now(UTC)
    spec = "job: job-{}\nexchanges:\n" + "".join(f"  - name: exchange-{n}\n    record: LONG\n" for n in range(20))
    with repository._database.write() as session:
        first = number_of_source = 1_000_000
        session.execute(
            insert(SourceCheckpointRow),
            [
                {"id": first + n, "uri": f"/c/{n}", "metadata_sha256": f"{n:064x}", "pinned": False}
                for n in range(number)
            ],
        )
        states = [RecoveryState.DONE] * 90 + [RecoveryState.FAILED] * 6 + [RecoveryState.CANCELLED] * 4
        session.execute(
            insert(RecoveryRow),
            [
                {
                    "id": f"r-{n:010x}",
                    "source_checkpoint_id": number_of_source + n,
                    "target": f"parquet:/recovered/job-{n % 97}/{n}",
                    "identity": f"{n:064x}",
                    "spec": spec.format(n % 97),
                    "spec_sha256": "0" * 64,
                    "parallelism": "2",
                    "options": {"on_corrupt": "fail"},
                    "settings": {},
                    "workspace": "/w",
                    "state": draw.choice(states),
                    "epoch": 5,
                    "plan_summary": {
                        "exchanges": [
                            {"name": f"e-{k}", "up": [2, 2], "down": [2, 3], "partitioner": "x" * 60} for k in range(20)
                        ]
                    },
                    "created_at": now - timedelta(minutes=50 * n),
                    "updated_at": now - timedelta(minutes=50 * n),
                }
                for n in range(number)
            ],
        )
        session.execute(
            insert(PhaseRow),
            [
                {
                    "recovery_id": f"r-{n:010x}",
                    "name": phase,
                    "state": PhaseState.DONE,
                    "units_total": 2,
                    "units_done": 2,
                    "bytes_total": 1000,
                    "bytes_done": 1000,
                    "records_done": 10,
                    "result": {"records": 10, "bytes": 1000, "verdict": "balanced", "location": "/out"},
                    "started_at": now,
                    "ended_at": now,
                }
                for n in range(number)
                for phase in Phase
            ],
        )


def drilled(repository: Repository, plan: str, outcomes: list[DrillOutcome], days_apart: float = 1.0) -> list[str]:
    """One drill an outcome, oldest first, the last one just now."""
    from cdr_core.drill.verdict import Check, CheckResult, Facts, Failure, FailureKind, judge

    draw, ids = random.Random(plan), []
    for place, outcome in enumerate(outcomes):
        begun = datetime.now(UTC) - timedelta(days=days_apart * (len(outcomes) - 1 - place), minutes=3)
        args = DrillArgs(job=plan, plan=plan, parallelism="2", rto_limit_s=120.0, rpo_limit_s=900.0)
        drill = repository.begin_drill(f"/checkpoints/{plan}/chk-{100 + place}", args)
        took = {DrillOutcome.TIMED_OUT: 170}.get(outcome, 60 + draw.random() * 40)
        facts = Facts(
            started_at=begun,
            modified=begun - timedelta(seconds=200 + draw.random() * 300),
            recovered_at=None if outcome is DrillOutcome.COULD_NOT_RUN else begun + timedelta(seconds=took),
            balance="balanced" if outcome is not DrillOutcome.COULD_NOT_RUN else None,
            failure=Failure(FailureKind.SURROUNDINGS, "No Spark server could be started.")
            if outcome is DrillOutcome.COULD_NOT_RUN
            else None,
            rto_limit_s=120.0,
            rpo_limit_s=900.0,
            looked=(Check("no_negative_amounts", CheckResult.FAILED, "3 rows have a negative amount.", "sql"),)
            if outcome is DrillOutcome.FAILED
            else (Check("rows", CheckResult.PASSED, "18,240 rows for 18,240 records."),),
        )
        verdict = judge(facts)
        assert verdict.result is outcome
        checks = [check.stored() for check in verdict.checks]
        repository.end_drill(
            drill.id, outcome, checks=checks, rto_s=verdict.rto_s, rpo_s=verdict.rpo_s, error=verdict.sentence
        )
        with repository._database.write() as session:
            session.execute(update(DrillRow).where(DrillRow.id == drill.id).values(started_at=begun))
            ended = begun + timedelta(seconds=took)
            session.execute(update(DrillResultRow).where(DrillResultRow.drill_id == drill.id).values(ended_at=ended))
        ids.append(drill.id)
    return ids
