"""What every test can rely on: no setting of the developer's reaches it, and the shipped checkpoints are at hand.

Nothing heavy is imported here; a test of one small thing starts at once.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import lanes
from tests.support.checkpoints import FixtureCheckpoints

if TYPE_CHECKING:
    from tests.support.bucket import Bucket
    from tests.support.postgres import Postgres
    from tests.support.shell import Shell

ROOT = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Set before any test module is imported: libraries read some of these once, when they are imported."""
    for name in [name for name in os.environ if name.startswith("CDR_")]:
        del os.environ[name]
    # For what is made once a session; a test has a home of its own.
    home = Path(tempfile.mkdtemp(prefix="cdr-tests-"))
    os.environ["CDR_HOME"] = str(home)
    os.environ["CDR_LOG_LEVEL"] = "warning"
    config.add_cleanup(lambda: shutil.rmtree(home, ignore_errors=True))
    link_spark_archive(home)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Compiled kernels outlive a home, or each child process of each test would compile them again.
    os.environ.setdefault("NUMBA_CACHE_DIR", str(ROOT / ".cdr" / "numba"))
    # It says good-bye when the interpreter ends, to a stream that pytest has closed by then: noise after the verdict.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    # Children find the library and the plugins also where the project itself is not installed.
    inherited = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "plugins"), *inherited])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First, so that ``-m`` sees the markers that follow from fixtures."""
    lanes.mark(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    lanes.enter(item)
    try:
        return (yield)
    finally:
        lanes.leave()


def link_spark_archive(home: Path) -> None:
    """Lets a Spark server of this home start with the archive that set-up made, if it made one: a third of the time."""
    (home / "java").mkdir(parents=True, exist_ok=True)
    for archive in (ROOT / ".cdr" / "java").glob("*.aot"):
        (home / "java" / archive.name).symlink_to(archive)


def pytest_report_header() -> list[str]:
    if (ROOT / "cdr.toml").is_file():
        return ["warning: cdr.toml in the checkout is in force for these tests, which expect the defaults"]
    return []


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A test sees the defaults and a home of its own; what it sets in the environment goes with it."""
    for name in [name for name in os.environ if name.startswith("CDR_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CDR_HOME", str(tmp_path / ".cdr"))
    monkeypatch.setenv("CDR_LOG_LEVEL", "warning")  # tests look at what else is on stderr


@pytest.fixture
def warm_home(tmp_path: Path) -> Path:
    """The test's ``CDR_HOME``, for tests that start a Spark server in it."""
    home = tmp_path / ".cdr"
    link_spark_archive(home)
    return home


@pytest.fixture(scope="session")
def fixture_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FixtureCheckpoints]:
    """``fixture_checkpoint("a_p3_thr0", 2)``: a real checkpoint's path, spec and oracle, to read and never to write."""
    checkpoints = FixtureCheckpoints(tmp_path_factory.mktemp("checkpoints"))
    yield checkpoints
    changed = checkpoints.changed()
    assert not changed, f"a test has changed the shipped checkpoint {', '.join(changed)}"


@pytest.fixture(scope="session")
def _s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    from tests.support.bucket import running_bucket

    with running_bucket(tmp_path_factory.mktemp("s3")) as bucket:
        yield bucket


@pytest.fixture
def bucket(_s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket of a real S3 server, which the settings of the test and of its children lead to."""
    lanes.require("s3")
    for name, value in _s3.environment.items():
        monkeypatch.setenv(name, value)
    return _s3


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL server, where every test makes databases of its own."""
    from tests.support.postgres import running_postgres

    with running_postgres() as server:
        yield server


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Runs a command of ``cdr`` in this process."""
    from tests.support.shell import Shell

    return Shell(monkeypatch, capsys)


@pytest.fixture(autouse=True)
def _no_source_index() -> Iterator[None]:
    """A worker process serves one recovery and keeps the index of its source; a test that runs units in this process is
    such a worker, and the next test may read the same checkpoint at another address.
    """
    from cdr_core.channels.source_index import use_index

    yield
    use_index("", "")
