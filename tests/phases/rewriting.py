"""Recoveries whose target is a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.audit.recovered import validate
from tests.support import inline


def request_of(source: Path, spec: Path, parallelism: str, out: Path, **more: Any) -> RecoveryRequest:
    return RecoveryRequest(str(source), str(spec), parallelism, f"checkpoint:{out}", **more)


def rewrite(source: Path, spec: Path, parallelism: str, out: Path, **more: Any) -> Mapping[str, Any]:
    """The receipt of a recovery into ``out``."""
    repository, recovery, settings = inline.start(request_of(source, spec, parallelism, out, **more))
    with repository:
        inline.run_all(repository, recovery, settings)
        receipt = repository.receipt(recovery)
    assert receipt is not None
    validate(receipt)
    assert json.loads((out / "cdr-receipt.json").read_text()) == receipt
    return receipt
