"""A database that is away, busy, misplaced or not one: one sentence, no credentials."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdr_core.errors import CdrError, DatabaseUnavailable, Fenced, Refused
from cdr_core.metadata import Phase, Repository, current_revision, database, upgrade
from tests.metadata.steps import begin, new_recovery, reach
from tests.support.postgres import Postgres, running_postgres

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+psycopg://me:{SECRET}@127.0.0.1:1/cdr",
        f"postgresql://me:{SECRET}@127.0.0.1:1/cdr?application_name=x",
        f"postgresql+psycopg://me@127.0.0.1:1/cdr?password={SECRET}",
    ],
)
def test_a_database_that_is_away_is_unavailable_and_its_password_is_not_told(url: str) -> None:
    for use in (Repository.open, upgrade, current_revision):
        with pytest.raises(DatabaseUnavailable, match=r"127\.0\.0\.1.*did not answer") as error:
            use(url)
        assert SECRET not in str(error.value)
        assert len(str(error.value).splitlines()) == 1
        assert error.value.__suppress_context__, "the driver's own error would show the statement"


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        (f"mysql://me:{SECRET}@host/db", "mysql cannot hold the metadata"),
        (f"nonsense:{SECRET}", "URL cannot be parsed"),
        ("sqlite://", "SQLite in memory cannot hold the metadata"),
        ("sqlite:///:memory:", "SQLite in memory cannot hold the metadata"),
    ],
)
def test_what_cannot_hold_the_metadata_is_refused(url: str, sentence: str) -> None:
    with pytest.raises(Refused, match=sentence) as refusal:
        Repository.open(url)
    assert SECRET not in str(refusal.value)


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


def test_an_outage_is_told_and_survived(own_postgres: Postgres) -> None:
    url = own_postgres.create()
    upgrade(url)
    with Repository.open(url) as repository:
        attempt = reach(repository, Phase.READ)
        own_postgres.stop()
        with pytest.raises(DatabaseUnavailable, match="did not answer"):
            repository.recovery(attempt.recovery_id)
        with pytest.raises(DatabaseUnavailable), repository.fenced(attempt.recovery_id, attempt.epoch):
            pytest.fail("nothing can be fenced without a database")
        own_postgres.start()
        with repository.fenced(attempt.recovery_id, attempt.epoch) as transaction:
            transaction.set_total(Phase.READ, 1, 1)


def test_a_client_that_stops_inside_a_transaction_does_not_hold_the_recovery(
    monkeypatch: pytest.MonkeyPatch, postgres: Postgres, migrated_postgres: str
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_SECONDS", 4)
    url = postgres.create(migrated_postgres)
    with Repository.open(url) as zombie, Repository.open(url) as other:
        attempt = reach(zombie, Phase.READ)

        def stop_and_go_on() -> None:
            with zombie.fenced(attempt.recovery_id, attempt.epoch) as transaction:
                begin(other, attempt.recovery_id, Phase.READ)
                transaction.set_total(Phase.READ, 1, 1)

        with pytest.raises(DatabaseUnavailable):
            stop_and_go_on()
        assert other.recovery(attempt.recovery_id).epoch == attempt.epoch + 1
        with pytest.raises(Fenced), zombie.fenced(attempt.recovery_id, attempt.epoch):
            pytest.fail("got past the fence")
    postgres.drop(url)


def test_a_sqlite_file_that_somebody_holds_is_unavailable(
    monkeypatch: pytest.MonkeyPatch, migrated_sqlite: Path, tmp_path: Path
) -> None:
    path = tmp_path / "cdr.db"
    path.write_bytes(migrated_sqlite.read_bytes())
    monkeypatch.setattr(database, "BUSY_TIMEOUT_SECONDS", 1)
    with Repository.open(f"sqlite:///{path}") as repository:
        holder = sqlite3.connect(path, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseUnavailable, match=r"is held by another process \(database is locked\)"):
            repository.create_recovery(new_recovery())
        assert repository.recoveries() == (), "readers do not wait for a writer"
        holder.execute("ROLLBACK")
        holder.close()
        assert repository.create_recovery(new_recovery())[1]


def test_sqlite_is_opened_as_promised(migrated_sqlite: Path, tmp_path: Path) -> None:
    path = tmp_path / "cdr.db"
    path.write_bytes(migrated_sqlite.read_bytes())
    opened = database.Database(f"sqlite:///{path}")
    with opened.write() as session:
        pragmas = {
            name: session.connection().exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
        }
    opened.close()
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 30_000}


def test_a_sqlite_file_whose_directory_is_missing_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'no' / 'such' / 'cdr.db'}"
    for use in (Repository.open, upgrade, current_revision):
        with pytest.raises(Refused, match=r"the directory .*no/such does not exist; create it"):
            use(url)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_sqlite_file_is_not_made_by_looking_at_it(tmp_path: Path) -> None:
    path = tmp_path / "cdr.db"
    with pytest.raises(Refused, match="does not exist; run: cdr db upgrade"):
        Repository.open(f"sqlite:///{path}")
    assert not path.exists()


@pytest.mark.parametrize(("make", "sentence"), [("folder", "cannot be opened"), ("text", "is not a SQLite database")])
def test_what_is_not_a_database_is_refused(tmp_path: Path, make: str, sentence: str) -> None:
    path = tmp_path / "cdr.db"
    if make == "folder":
        path.mkdir()
    else:
        path.write_text("these are not the rows you are looking for\n" * 100)
    for use in (Repository.open, upgrade):
        with pytest.raises(Refused, match=sentence):
            use(f"sqlite:///{path}")


def test_only_our_errors_leave(repository: Repository) -> None:
    attempt = reach(repository, Phase.READ)
    with pytest.raises(CdrError) as error:
        repository.create_recovery(new_recovery(id=attempt.recovery_id, target="parquet:/other"))
    assert type(error.value).__module__ == "cdr_core.errors"
