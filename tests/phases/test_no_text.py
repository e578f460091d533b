"""Strings that Java allows and UTF-8 cannot hold: a recovery never changes them, and what its error proposes works."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from cdr_core.errors import CorruptChannelState
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.phases.keys import key_of
from tests.support import inline, output
from tests.support.written import SPEC, frame, record, write_checkpoint

LONE = bytes([2, 0x80, 0xB0, 0x03])
"""A string of one character, U+D800, as Flink writes it."""

KEYED = SPEC.format(partitioner="hash")


def recover(checkpoint: str, spec: str, to: Path) -> list[dict[str, Any]]:
    request = RecoveryRequest(checkpoint, spec, "gen=1,slow=3", f"parquet:{to}")
    repository, recovery, settings = inline.start(request)
    with repository:
        assert inline.run_all(repository, recovery, settings)["verdict"] == "balanced"
    return output.rows(to)


def test_a_lone_surrogate_fails_the_recovery_and_is_moved_as_opaque_bytes_as_the_error_says(tmp_path: Path) -> None:
    odd = frame(b"\x01" + struct.pack(">q", key_of(0, 2)) + LONE)
    checkpoint = write_checkpoint(tmp_path / "chk", 1, 2, {(0, 0): record(key_of(0, 2), "text") + odd})
    with pytest.raises(CorruptChannelState, match="from this field on as OPAQUE") as caught:
        recover(checkpoint, KEYED, tmp_path / "out")
    assert output.manifest(tmp_path / "out") is None
    where = caught.value.where
    assert (where.operator, where.offset) == ("slow", len(record(key_of(0, 2), "text")))

    rows = recover(checkpoint, KEYED.replace("LONG, STRING", "LONG, OPAQUE"), tmp_path / "opaque")
    assert sorted((row["pos"], row["main"]["f1"]) for row in rows) == [(0, b"\x05text"), (1, LONE)]
    assert [row["raw"] for row in rows if row["pos"] == 1] == [odd[4:]]
