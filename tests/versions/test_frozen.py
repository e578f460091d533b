"""What earlier versions wrote: this code continues it, reads it, or refuses it by its version with a way out.

Every artefact is looked at in a process of its own: artefacts of one recovery have the same addresses with other bytes
behind them, and a process remembers what it read.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import alembic.command  # noqa: F401
import pyarrow.dataset  # noqa: F401
import pytest

import cdr_core.recovery.kernel_warmup  # noqa: F401 # as the two above: what is loaded here is not loaded in every process
from cdr_core import settings
from cdr_core.cli import main
from cdr_core.metadata import DrillOutcome, Phase, RecoveryState, Repository, SpillSetState, upgrade
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.audit.recovered import validate
from tests.commit.targets import IcebergTarget, PaimonTarget
from tests.support import inline, output
from tests.support.postgres import Postgres
from tests.versions import frozen
from tests.versions.children import in_child
from tests.versions.frozen import EXPORTED, OUT, ROOT, SPEC, Artefact

VERSIONS = {version.folder.name: version for version in frozen.versions()}
ALL = [(name, artefact) for name, version in VERSIONS.items() for artefact in version.artefacts]
RECOVERIES = [(version, artefact) for version, artefact in ALL if artefact.recovery]
ON_POSTGRESQL = {
    "parquet/created",
    "parquet/spill.sealed",
    "parquet/commit.intent",
    "checkpointing/checkpoint.completed",
    "per-checkpoint/listener.after+publish.after",
    "export/export.states",
}
PARTIAL = {"quarantine", "drop-records"}
"""Series whose receipt lists what was left out: ``cdr verify`` says so with status 6."""
OWN_TABLE = PARTIAL | {"without-raw"}
"""Series whose table is not that of all records with their bytes."""
NO_TABLE = {"none", "checkpoint", "checkpoint-same"}
SPILL_MADE_AGAIN: set[str] = set()
"""Versions whose spill sets this code cannot read, so that a drain makes them again from the source."""

Rows = list[dict[str, Any]]


def ids(found: list[tuple[str, Artefact]]) -> list[str]:
    return [f"{version}/{artefact.name}" for version, artefact in found]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("frozen")
    for name, version in VERSIONS.items():
        frozen.unpack(version, folder / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", sys.argv)
        shell("settings", "--json")  # loads what the shell needs once, not in every process
    with frozen.occupied():
        yield folder


def shell(*arguments: str) -> int:
    """The exit status of a command of ``cdr``."""
    sys.argv = ["cdr", *arguments]
    with pytest.raises(SystemExit) as ended:
        main.run()
    return int(ended.value.code or 0)


def finish(artefact: Artefact, version: str) -> dict[str, Any]:
    """Upgrade the database and run what is left of the recovery; its receipt."""
    now = settings.load()
    upgrade(now.database_url)
    with Repository.open(now.database_url) as repository:
        for phase in Phase:
            workers = inline.ThreadedWorkers() if artefact.threads else inline.InlineWorkers()
            inline.run(repository, artefact.recovery, phase, now, workers)
        assert repository.recovery(artefact.recovery).state is RecoveryState.DONE
        receipt = repository.receipt(artefact.recovery)
        lost = [each for each in repository.spill_sets(artefact.recovery) if each.state is SpillSetState.LOST]
    assert not lost or version in SPILL_MADE_AGAIN, "a recorded spill set was not read, but made again"
    assert receipt is not None
    return dict(receipt)


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: (row["exchange"], row["up"], row["down"], row["pos"]))


def recorded_rows(version: Path, series: str) -> Rows:
    """Those of the finished table of the series, or of all records."""
    name = f"{series if series in OWN_TABLE else 'parquet'}/finished"
    return in_order(output.rows(version / name / "root" / "out"))


def continue_and_check(version: Path, artefact: Artefact) -> None:
    """The recovery ends with a receipt that ``cdr verify`` agrees with, and with the rows of the recorded table."""
    receipt = finish(artefact, version.name)
    validate(receipt)
    is_partial = artefact.series in PARTIAL
    assert receipt["verdict"] == ("partial" if is_partial else "balanced")
    if artefact.series != "none":
        (ROOT / "receipt.json").write_text(json.dumps(receipt))
        assert shell("verify", str(ROOT / "receipt.json")) == (6 if is_partial else 0)
    if artefact.series not in NO_TABLE:
        readers: dict[str, Callable[[], Rows]] = {
            "iceberg": lambda: IcebergTarget(ROOT).rows(),
            "paimon": lambda: PaimonTarget(ROOT).rows(),
        }
        rows = readers.get(artefact.series, lambda: output.rows(OUT))()
        assert in_order(rows) == recorded_rows(version, artefact.series)


@pytest.mark.parametrize(("version", "artefact"), RECOVERIES, ids=ids(RECOVERIES))
def test_a_frozen_recovery_is_continued_to_the_same_table(unpacked: Path, version: str, artefact: Artefact) -> None:
    folder = unpacked / version
    frozen.restore(folder / artefact.name / "root")
    frozen.load_sqlite(folder / artefact.name)
    assert in_child(lambda: continue_and_check(folder, artefact), artefact.environment) == 0


STOPS_ON_POSTGRESQL = [(version, artefact) for version, artefact in RECOVERIES if artefact.name in ON_POSTGRESQL]


@pytest.mark.parametrize(("version", "artefact"), STOPS_ON_POSTGRESQL, ids=ids(STOPS_ON_POSTGRESQL))
def test_a_frozen_recovery_in_postgresql_is_continued_to_the_same_table(
    unpacked: Path, postgres: Postgres, version: str, artefact: Artefact
) -> None:
    folder, url = unpacked / version, postgres.create()
    frozen.restore(folder / artefact.name / "root")
    frozen.load_postgresql(folder / artefact.name, url)
    environment = {**artefact.environment, "CDR_DATABASE_URL": url}
    assert in_child(lambda: continue_and_check(folder, artefact), environment) == 0
    postgres.drop(url)


def export_again(version: Path) -> None:
    """The exported checkpoint can be recovered, and holds every record of the source."""
    again = ROOT / "again"
    upgrade(settings.load().database_url)
    started = inline.start(RecoveryRequest(str(EXPORTED), str(SPEC), "3", f"parquet:{again}"))
    assert inline.run_all(*started)["verdict"] == "balanced"
    found = Counter((row["ts"], str(row["main"])) for row in output.rows(again))
    assert found == Counter((row["ts"], str(row["main"])) for row in recorded_rows(version, "parquet"))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_frozen_export_is_a_checkpoint_with_every_record(unpacked: Path, version: str) -> None:
    artefact = unpacked / version / "export" / "export.metadata"
    frozen.restore(artefact / "root")
    frozen.load_sqlite(artefact)
    assert in_child(lambda: export_again(unpacked / version)) == 0


def read_drills() -> None:
    now = settings.load()
    upgrade(now.database_url)
    with Repository.open(now.database_url) as repository:
        drills = repository.drills()
    assert {drill.result for drill in drills} == {DrillOutcome.PASSED, DrillOutcome.FAILED}
    assert [shell("drill", "show", drill.id) for drill in drills] == [0, 0]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_frozen_history_of_drills_is_read(unpacked: Path, version: str) -> None:
    artefact = unpacked / version / "drill" / "finished"
    frozen.restore(artefact / "root")
    frozen.load_sqlite(artefact)
    assert in_child(read_drills) == 0
