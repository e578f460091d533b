"""A sample of ``make fuzz`` in every run of the tests, and the examples that once found something."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdr_core.flink import channel_state
from tests.flink_formats import fuzz
from tests.flink_formats.hostile import check, corpus
from tests.flink_formats.hostile.mutate import Damage

EXAMPLES = 2000


def test_hostile_bytes_are_a_clean_error_or_are_understood_to_the_byte() -> None:
    assert fuzz.run(fuzz.SEED, 0, EXAMPLES) == []


def test_the_corpus_has_every_kind_of_file() -> None:
    items = corpus.items()
    assert any(not item.is_metadata and len(item.fields) > 20 for item in items)
    assert any(item.is_metadata and item.files for item in items)
    assert {data[7] for data in (item.data for item in items if item.is_metadata)} >= {2, 3, 4, 5, 6}


def test_an_undamaged_corpus_passes_every_check() -> None:
    for item in corpus.items():
        check.check(item, item.data, Damage(None))


def test_a_reader_that_believes_lengths_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_state, "_check_lengths", lambda *_: None)
    assert fuzz.run(fuzz.SEED, 0, 300) != []


def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "fuzz.json"
    arguments = ["--state", str(state), "--seed", "5"]
    assert fuzz.main([*arguments, "--examples", "10"]) == 0
    assert fuzz.main([*arguments, "--examples", "30"]) == 0
    assert "examples 10 to 30" in capsys.readouterr().out
    assert json.loads(state.read_text())["5"]["done"] == 30
