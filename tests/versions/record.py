"""Record what the checked-out version of cdr writes: ``python -m tests.versions.record [SERIES…]``.

With names of series it renews those and keeps the others. Every recovery runs in child processes, which die at a fault
point as by SIGKILL. What is then on disk and in the database becomes one artefact. ``CONTRIBUTING.md`` says when to
record.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from sqlalchemy import create_engine, insert, select, text

import cdr_core
import cdr_core.recovery.kernel_warmup  # children inherit the compiled kernels
from cdr_core.metadata import Phase, upgrade
from cdr_core.metadata.models import Base
from cdr_core.spark.server import find_server, stop_server
from cdr_core.storage.local import host_id
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.postgres import Postgres, database_of, running_postgres
from tests.versions import children, frozen
from tests.versions.children import fault, in_child
from tests.versions.frozen import HOME, ROOT, SOURCE, SPEC, Artefact, Version
from tests.versions.series import DRILL, EXPORT, FIXTURE, SERIES, SLOWLY, SPARK, Series

CHECKOUT = Path(__file__).resolve().parents[2]
CODE = ("cdr_core", "sql")


class Recorder:
    """Runs recoveries below ``ROOT`` and copies what they leave into a staging folder."""

    def __init__(self, staging: Path, postgres: Postgres, checkpoints: FixtureCheckpoints) -> None:
        self._staging, self._postgres, self._checkpoints = staging, postgres, checkpoints
        self._template = postgres.create()
        upgrade(self._template)
        self.artefacts: list[Artefact] = []

    def record(self, series: Series) -> None:
        """All stops of a series, then its end."""
        self._begin(series)
        if series.created:
            self._keep(series, "created")
        for phase in Phase:
            for stop in series.stops.get(phase, ()):
                with _undone():
                    for step in stop.split(" then "):
                        self._die(partial(children.run_phase, series, phase, self._recovery), series, step)
                    self._keep(series, stop)
            self._run(series, phase)
        self._keep(series, "")

    def record_export(self) -> None:
        """A recovery checkpoint in Flink's format, half written and whole; the recovery itself is not committed."""
        self._begin(EXPORT)
        for phase in (Phase.READ, Phase.FILTER, Phase.SPILL, Phase.DRAIN):
            self._run(EXPORT, phase)
        with _undone():
            self._die(lambda: children.export(self._recovery), EXPORT, "export.states")
            self._keep(EXPORT, "export.states")
        assert in_child(lambda: children.export(self._recovery), EXPORT.environment) == 0
        self._keep(EXPORT, "export.metadata")

    def record_drills(self) -> None:
        """A history with a drill that passed and one that failed."""
        frozen.restore()
        _place_source(self._checkpoints, DRILL)
        assert in_child(children.drill) == 0
        _damage(SOURCE)
        assert in_child(children.drill) == 0
        self._keep(DRILL, "", command="cdr drill run")

    def record_spark(self) -> None:
        """What the shell leaves with a real Spark server, which the recovery's row then names."""
        self._begin(SPARK)
        command = [str(Path(sys.executable).with_name("cdr")), "resume", self._recovery]
        kernels = {"NUMBA_CACHE_DIR": str(CHECKOUT / ".cdr" / "numba")}
        environment = {**os.environ, "CDR_HOME": str(HOME), **kernels, **fault("drain.after-done")}
        done = subprocess.run(command, env=environment, cwd=CHECKOUT, capture_output=True, check=False, timeout=300)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        server = find_server(HOME / "spark" / self._recovery)
        assert server is not None, "the server outlives the driver"
        stop_server(server)
        self._keep(SPARK, "drain.after-done")

    def _begin(self, series: Series) -> None:
        frozen.restore()
        if "CDR_SPILL_DIRS" in series.environment:
            Path(series.environment["CDR_SPILL_DIRS"]).mkdir()
        _place_source(self._checkpoints, series)
        assert in_child(lambda: children.create(series), series.environment) == 0

    @property
    def _recovery(self) -> str:
        with closing(sqlite3.connect(frozen.DATABASE)) as connection:
            found = connection.execute("SELECT id FROM recovery").fetchall()
        return str(found[0][0]) if len(found) == 1 else ""

    def _run(self, series: Series, phase: Phase) -> None:
        environment = {**series.environment, **({"CDR_FAULTS": SLOWLY} if series.threads else {})}
        status = in_child(lambda: children.run_phase(series, phase, self._recovery), environment)
        assert status == 0, f"{series.name}: {phase} ended with {status}"

    def _die(self, work: Callable[[], None], series: Series, step: str) -> None:
        status = in_child(work, {**series.environment, **fault(step, series.threads)})
        assert status == -signal.SIGKILL, f"{series.name}: {step} ended with {status}"

    def _keep(self, series: Series, stop: str, command: str = "") -> None:
        artefact = Artefact(
            series.name, stop, command or series.command, self._recovery, dict(series.environment), series.threads
        )
        folder = self._staging / artefact.name
        folder.mkdir(parents=True)
        (folder / "sqlite.sql").write_text(frozen.dump_sqlite())
        (folder / "postgresql.sql").write_text(self._dump_postgresql())
        ignored = shutil.ignore_patterns("cdr.db*", "spark", "numba", ".made-by*")
        shutil.copytree(ROOT, folder / "root", ignore=ignored)
        _refuse_this_machine(folder)
        self.artefacts.append(artefact)
        print(artefact.name, flush=True)

    def _dump_postgresql(self) -> str:
        """The same rows in PostgreSQL, dumped with its own tool."""
        url = self._postgres.create(database_of(self._template))
        _copy_rows(f"sqlite:///{frozen.DATABASE}", url)
        dump = self._postgres.dump(url)
        self._postgres.drop(url)
        return dump.replace(host_id(), frozen.HOST)


@contextmanager
def _undone() -> Iterator[None]:
    """Afterwards ``ROOT`` is as it was before."""
    with tempfile.TemporaryDirectory() as base:
        shutil.copytree(ROOT, base, dirs_exist_ok=True)
        yield
        frozen.restore(Path(base))


def _place_source(checkpoints: FixtureCheckpoints, series: Series) -> None:
    """The source checkpoint and its spec below ``ROOT``."""
    shipped = checkpoints(*FIXTURE)
    shipped.copy(SOURCE)
    shutil.copy(shipped.spec, SPEC)
    if series.damage:
        _damage(SOURCE)


def _damage(checkpoint: Path) -> None:
    """Cut the end off the largest file."""
    largest = max(checkpoint.iterdir(), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-3000])


def _copy_rows(source: str, target: str) -> None:
    here, there = create_engine(source), create_engine(target)
    with here.connect() as rows, there.begin() as copy:
        for table in Base.metadata.sorted_tables:
            found = [dict(row._mapping) for row in rows.execute(select(table))]
            if found:
                copy.execute(insert(table), found)
            for column in table.primary_key.columns:
                if column.autoincrement is True or (column.type.python_type is int and not column.foreign_keys):
                    copy.execute(text(_RENUMBER.format(table=table.name, column=column.name)))
    here.dispose()
    there.dispose()


_RENUMBER = (
    "SELECT setval(pg_get_serial_sequence('{table}', '{column}'), (SELECT max({column}) FROM {table})) "
    "WHERE pg_get_serial_sequence('{table}', '{column}') IS NOT NULL AND EXISTS (SELECT 1 FROM {table})"
)
"""The next number that PostgreSQL gives is above those that were copied."""


def _refuse_this_machine(folder: Path) -> None:
    """An artefact must not name the host or the checkout."""
    names = (host_id().encode(), str(CHECKOUT).encode())
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not any(name in data for name in names), f"{path} names this machine"


def _commit() -> str:
    """The commit whose code is recorded; changes that are not committed are refused."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout

    changed = git("status", "--porcelain", "--", *CODE)
    assert not changed, f"commit these first, or the artefacts are of no version:\n{changed}"
    return git("log", "-1", "--format=%h", "--", *CODE).strip()


def _recordings(recorder: Recorder) -> Iterator[tuple[str, Callable[[], None]]]:
    for series in SERIES:
        yield series.name, partial(recorder.record, series)
    yield "export", recorder.record_export
    yield "drill", recorder.record_drills
    yield "spark", recorder.record_spark


def main(wished: list[str]) -> None:
    for name in [name for name in os.environ if name.startswith("CDR_")]:
        del os.environ[name]
    commit = _commit()
    folder = frozen.VERSIONS / f"{cdr_core.__version__}-{commit}"
    with ExitStack() as stack:
        stack.enter_context(frozen.occupied())
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in ("staging", "checkpoints"):
            (scratch / name).mkdir()
        postgres = stack.enter_context(running_postgres())
        recorder = Recorder(scratch / "staging", postgres, FixtureCheckpoints(scratch / "checkpoints"))
        kept = _kept(folder, scratch / "staging", wished) if wished else ()
        for name, record in _recordings(recorder):
            if not wished or name in wished:
                record()
        folder.mkdir(parents=True, exist_ok=True)
        frozen.pack(scratch / "staging", folder / frozen.ARCHIVE)
        today = datetime.now(UTC).date().isoformat()
        Version(folder, cdr_core.__version__, commit, today, (*kept, *recorder.artefacts)).write()
    print(f"{len(recorder.artefacts)} artefacts in {folder.relative_to(CHECKOUT)}")


def _kept(folder: Path, staging: Path, wished: list[str]) -> tuple[Artefact, ...]:
    """The artefacts of other series that were recorded of the same commit."""
    if not (folder / frozen.MANIFEST).is_file():
        return ()
    version = Version.read(folder)
    frozen.unpack(version, staging)
    for series in wished:
        shutil.rmtree(staging / series, ignore_errors=True)
    return tuple(artefact for artefact in version.artefacts if artefact.series not in wished)


if __name__ == "__main__":
    main(sys.argv[1:])
