"""A recovery whose target is a checkpoint, up to its commit."""

from __future__ import annotations

import hashlib
import json

from cdr_core.metadata import Phase, Repository
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.settings import Settings
from cdr_core.storage import storage_for
from cdr_core.sweep import sweep
from cdr_core.verify.verify import Request, verify
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoint

RECORDS = 1878


Started = tuple[Repository, str, Settings]


def drained(source: FixtureCheckpoint, target: str, parallelism: str = "2", from_: str = "") -> Started:
    """Everything but the commit is done."""
    request = RecoveryRequest(from_ or str(source.path), str(source.spec), parallelism, f"checkpoint:{target}")
    repository, recovery, settings = inline.start(request)
    for phase in (Phase.READ, Phase.FILTER, Phase.SPILL, Phase.DRAIN):
        inline.run(repository, recovery, phase, settings)
    return repository, recovery, settings


def require_one_checkpoint(source: FixtureCheckpoint, target: str, started: Started) -> None:
    """It is whole, the receipt tells of it, and a sweep leaves in the directory what it needs and nothing else."""
    repository, recovery, settings = started
    report = verify(Request(str(source.path), f"checkpoint:{target}", str(source.spec)))
    assert (report.differences, report.output.records) == ((), RECORDS)
    (entry,) = repository.commit_log(recovery)
    assert str(entry.state) == "DONE"
    receipt = repository.receipt(recovery)
    assert receipt is not None
    beside = json.loads(storage_for(target).read(f"{target}/cdr-receipt.json"))
    assert beside["checkpoint"] == receipt["checkpoint"]
    sweep(repository, settings)
    names = {uri.rpartition("/")[2] for uri in storage_for(target).list(target)}
    needed = {file["path"] for kind in ("files", "copied") for file in receipt["checkpoint"][kind]}
    assert names == needed | {"_metadata", "cdr-receipt.json", "cdr-ledger.parquet"}
    ledger = storage_for(target).read(f"{target}/cdr-ledger.parquet")
    assert beside["ledger"]["sha256"] == receipt["ledger"]["sha256"] == hashlib.sha256(ledger).hexdigest()
