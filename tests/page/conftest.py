"""One api-server for all tests of the page, with a home whose recoveries were really run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from cdr_core.metadata import Repository
from tests.page import sample
from tests.page.server import PageServer, running_page
from tests.support.checkpoints import FixtureCheckpoints

# Airflow reads its configuration when it is first imported: it must not find the developer's own.
os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="cdr-airflow-"))


@dataclass(frozen=True, slots=True)
class Sample:
    """The server, and the recoveries in its database."""

    server: PageServer
    done: str
    overtaken: str
    failed: str
    wide: str


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory, fixture_checkpoint: FixtureCheckpoints) -> Iterator[Sample]:
    folder = tmp_path_factory.mktemp("page")
    home = folder / "home"
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    with running_page(folder / "airflow", home, wait=False, AWS_SECRET_ACCESS_KEY=sample.CANARY) as server:
        # Airflow takes its time to start: meanwhile there is something to recover.
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CDR_HOME", str(home))
            done = sample.recovered(checkpoint, folder / f"out-{sample.CANARY}")
            overtaken = sample.overtaken(checkpoint, folder / "other")
            failed = sample.failed(checkpoint, folder)
            with Repository.open(server.database_url) as repository:
                wide = sample.wide(repository)
                sample.give_away(repository, done)
        server.wait()
        yield Sample(server, done, overtaken, failed, wide)
