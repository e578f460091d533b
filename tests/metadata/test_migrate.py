"""The schema: made by the migrations, the same as the models, and nothing works on another one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from cdr_core.errors import CdrError, Refused
from cdr_core.metadata import DrillArgs, Phase, Repository, current_revision, migrate, upgrade
from cdr_core.metadata.database import Database
from cdr_core.metadata.models import Base
from tests.metadata.steps import reach

HINT = "run: cdr db upgrade"


def tables(url: str) -> set[str]:
    database = Database(url)
    with database.migration() as connection:
        found = set(inspect(connection).get_table_names())
    database.close()
    return found


def execute(url: str, statement: str) -> None:
    database = Database(url)
    with database.migration() as connection:
        connection.execute(text(statement))
    database.close()


def test_from_empty_the_migrations_make_what_the_models_say(empty_url: str) -> None:
    assert upgrade(empty_url) == migrate.HEAD
    database = Database(empty_url)
    with database.migration() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Base.metadata) == []
    database.close()
    assert tables(empty_url) == {*Base.metadata.tables, "alembic_version"}
    assert current_revision(empty_url) == migrate.HEAD


def test_the_revision_the_code_needs_is_the_last_migration() -> None:
    scripts = ScriptDirectory(str(migrate.scripts()))
    assert scripts.get_current_head() == migrate.HEAD


def test_upgrading_twice_changes_nothing(url: str, repository: Repository) -> None:
    drill = repository.begin_drill("/", DrillArgs())
    upgrade(url)
    assert repository.drill(drill.id) == drill


def test_several_may_upgrade_at_once(empty_url: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(upgrade, [empty_url] * 6)) == [migrate.HEAD] * 6
    Repository.open(empty_url).close()


def test_a_failed_migration_leaves_nothing_behind(empty_url: str) -> None:
    execute(empty_url, "CREATE TABLE receipt (mine INTEGER)")
    with pytest.raises(CdrError, match=r"refused a statement.*already exists"):
        upgrade(empty_url)
    assert tables(empty_url) == {"receipt"}
    assert current_revision(empty_url) is None


def test_a_database_without_a_schema_is_refused(empty_url: str) -> None:
    execute(empty_url, "CREATE TABLE mine (id INTEGER)")
    assert current_revision(empty_url) is None
    with pytest.raises(Refused, match=f"has no schema; {HINT}"):
        Repository.open(empty_url)


def test_an_older_schema_is_refused_until_it_is_upgraded(empty_url: str) -> None:
    database = Database(empty_url)
    config = Config()
    config.set_main_option("script_location", str(migrate.scripts()))
    with database.migration() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    database.close()
    with pytest.raises(Refused, match=f"has schema 0001, this cdr needs {migrate.HEAD}; {HINT}"):
        Repository.open(empty_url)
    upgrade(empty_url)
    Repository.open(empty_url).close()


def test_a_table_that_others_refer_to_can_be_rebuilt(url: str, repository: Repository) -> None:
    """What SQLite needs for every change of a column; a migration of tomorrow must not find it impossible."""
    attempt = reach(repository, Phase.READ)
    database = Database(url)
    with database.migration() as connection:
        operations = Operations(MigrationContext.configure(connection))
        with operations.batch_alter_table("recovery") as table:
            table.alter_column("parallelism", nullable=True)
    database.close()
    assert repository.attempts(attempt.recovery_id) == (attempt,)
    assert repository.recovery(attempt.recovery_id).parallelism == "2"


def test_a_newer_schema_is_refused_and_not_touched(url: str) -> None:
    execute(url, "UPDATE alembic_version SET version_num = '9999'")
    for use in (Repository.open, upgrade):
        with pytest.raises(Refused, match=r"has schema 9999, newer than the .* use the newer cdr"):
            use(url)
    assert current_revision(url) == "9999"


def test_a_table_that_vanished_is_told_as_another_schema(url: str, repository: Repository) -> None:
    execute(url, "DROP TABLE drill_result")
    with pytest.raises(Refused, match=f"has another schema.*{HINT}"):
        repository.drills()


def test_migrations_that_are_not_there_are_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("cdr_core.__file__", str(tmp_path / "site" / "cdr_core" / "__init__.py"))
    with pytest.raises(Refused, match="has no migrations; install cdr again"):
        upgrade(f"sqlite:///{tmp_path / 'cdr.db'}")


def test_a_migration_that_orphans_rows_is_rolled_back(migrated_sqlite: Path, tmp_path: Path) -> None:
    path = tmp_path / "cdr.db"
    path.write_bytes(migrated_sqlite.read_bytes())
    url = f"sqlite:///{path}"
    with Repository.open(url) as repository:
        attempt = reach(repository, Phase.READ)
        with pytest.raises(CdrError, match="would leave rows that refer to nothing"):
            execute(url, "DELETE FROM recovery")
        assert repository.attempts(attempt.recovery_id) == (attempt,)
