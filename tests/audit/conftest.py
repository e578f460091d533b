from __future__ import annotations

import pytest

from tests.audit.recovered import Recovered, recover
from tests.support.checkpoints import FixtureCheckpoints


@pytest.fixture(scope="session")
def recovered(fixture_checkpoint: FixtureCheckpoints, tmp_path_factory: pytest.TempPathFactory) -> Recovered:
    """``a_p3_thr0`` at parallelism 2, to read and to copy."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    return recover(str(checkpoint.path), str(checkpoint.spec), "2", tmp_path_factory.mktemp("recovered"))
