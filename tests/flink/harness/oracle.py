"""What Flink's own classes read in a checkpoint, as a file of JSON lines; ``tests/support/oracle.py`` reads it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import yaml

from cdr_core.flink.operator_id import operator_id_of_uid
from tests.flink.harness.java import NEWEST, run
from tests.support.oracle import Oracle

SECONDS = 120.0


def write_oracle(checkpoint: Path, spec: str | None, to: Path) -> Oracle:
    """Reads a checkpoint of any version with the newest Flink; without a spec its metadata only.

    Operators of the spec are named by uid.
    """
    exchanges = [
        {
            "upstream": operator_id_of_uid(exchange["upstream"]["operator"]),
            "partition": exchange["upstream"]["partition"],
            "downstream": operator_id_of_uid(exchange["downstream"]["operator"]),
            "gate": exchange["downstream"]["gate"],
            "record": exchange["record"],
        }
        for exchange in (yaml.safe_load(spec)["exchanges"] if spec else ())
    ]
    with tempfile.NamedTemporaryFile("w", prefix="cdr-flink-", suffix=".json") as file:
        json.dump(exchanges, file)
        file.flush()
        run(NEWEST, "cdr.oracle.Oracle", [str(checkpoint.resolve()), file.name, str(to.resolve())], SECONDS)
    return Oracle(to)
