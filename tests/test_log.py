"""The log: fields of every line, text and JSON, and the story of a recovery."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdr_core.log import ROOT, LogFormat, configure, log_fields, with_fields
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.support import inline
from tests.support.checkpoints import FixtureCheckpoints

log = logging.getLogger(f"{ROOT}.test")


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    logger = logging.getLogger(ROOT)
    before = logger.handlers, logger.level, logger.propagate
    yield io.StringIO()
    logger.handlers, logger.level, logger.propagate = before


def test_a_line_has_the_fields_of_its_block_and_of_its_call(lines: io.StringIO) -> None:
    configure("debug", LogFormat.JSON, lines)
    with log_fields(recovery="r-1", phase="drain", epoch=4):
        log.debug("snapshot %s", 7, extra=with_fields(subtask=2))
    log.info("outside")
    inside, outside = map(json.loads, lines.getvalue().splitlines())
    assert {name: inside[name] for name in ("recovery", "phase", "epoch", "subtask", "message", "level")} == {
        "recovery": "r-1",
        "phase": "drain",
        "epoch": 4,
        "subtask": 2,
        "message": "snapshot 7",
        "level": "DEBUG",
    }
    assert "recovery" not in outside


def test_text_has_time_level_message_and_fields(lines: io.StringIO) -> None:
    configure("info", LogFormat.TEXT, lines)
    with log_fields(recovery="r-1"):
        log.debug("left out")
        log.info("published", extra=with_fields(commit=3))
    (line,) = lines.getvalue().splitlines()
    assert line.endswith("Z INFO published  recovery=r-1 commit=3")


def test_without_a_level_a_terminal_gets_warnings_only(lines: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "isatty", lambda: True)
    configure("", LogFormat.TEXT, lines)
    log.info("a bar is drawn here")
    log.warning("seen")
    assert len(lines.getvalue().splitlines()) == 1


def test_info_tells_the_story_of_a_recovery(
    lines: io.StringIO,
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cdr_core.runtime.unit_runner.configure", lambda *_: None)
    configure("info", LogFormat.JSON, lines)
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    request = RecoveryRequest(str(checkpoint.path), str(checkpoint.spec), "2", f"parquet:{tmp_path / 'out'}")
    repository, recovery, settings = inline.start(request)
    inline.run_all(repository, recovery, settings)
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert all(line["recovery"] == recovery for line in told)
    started = [line["phase"] for line in told if line["message"] == "phase started"]
    done = [line["phase"] for line in told if line["message"] == "phase done"]
    assert started == done == ["read", "filter", "spill", "drain", "commit"]
    messages = [line["message"] for line in told]
    assert messages[0] == "recovery created"
    assert messages.index("the drain starts") < messages.index("published") < len(messages) - 1
    assert settings.database_url not in lines.getvalue()
