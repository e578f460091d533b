"""A sample of ``make fuzz`` in every run of the tests, and the examples that once found something."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdr_core.channels.element_reader import element_batches
from cdr_core.flink import channel_state
from cdr_core.planning import exchange_binding as bound
from cdr_core.planning import plan
from tests.flink_formats import fuzz
from tests.flink_formats.hostile import check, corpus, through
from tests.flink_formats.hostile.known import KNOWN, Known
from tests.flink_formats.hostile.mutate import Damage

EXAMPLES = 1000


def test_hostile_bytes_are_a_clean_error_or_are_understood_to_the_byte() -> None:
    assert fuzz.run(fuzz.SEED, 0, EXAMPLES) == []


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.what)
def test_damage_that_once_got_through_does_so_no_more(known: Known) -> None:
    item, data = known.damaged()
    with fuzz.little_room(), fuzz.in_time():
        for wish in range(len(through.WISHES)):
            check.check(item, data, Damage(None), wish)


def test_whoever_counts_any_number_of_key_groups_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bound, "beyond_flink", lambda *_: None)
    monkeypatch.setattr(plan, "beyond_flink", lambda *_: None)
    item, data = KNOWN[0].damaged()
    with fuzz.little_room(), pytest.raises(MemoryError):
        check.check(item, data, Damage(None))


def test_the_corpus_has_every_kind_of_file() -> None:
    items = corpus.items()
    assert any(not item.is_metadata and len(item.fields) > 20 for item in items)
    assert any(item.is_metadata and item.files for item in items)
    assert any(not item.is_metadata and b"file:/gone/taskowned/" in item.head for item in items), "segments"
    assert {data[7] for data in (item.data for item in items if item.is_metadata)} >= {2, 3, 4, 5, 6}


def test_an_undamaged_corpus_passes_every_check() -> None:
    for item in corpus.items():
        check.check(item, item.data, Damage(None))


def test_every_element_of_an_undamaged_checkpoint_with_files_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 0

    def counted(*arguments: Any) -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in element_batches(*arguments):
            rows += batch.num_rows
            yield batch

    monkeypatch.setattr(through, "element_batches", counted)
    for item in corpus.items():
        before = rows
        if item.files:
            check.check(item, item.data, Damage(None))
            assert rows > before, item.name


def test_a_reader_that_believes_lengths_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_state, "_check_lengths", lambda *_: None)
    assert fuzz.run(fuzz.SEED, 0, 300) != []


def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "fuzz.json"
    arguments = ["--state", str(state), "--seed", "5"]
    assert fuzz.main([*arguments, "--examples", "10"]) == 0
    assert fuzz.main([*arguments, "--examples", "30", "--record", str(tmp_path / "runs.json")]) == 0
    assert "examples 10 to 30" in capsys.readouterr().out
    assert json.loads(state.read_text())["5"]["done"] == 30
    recorded = json.loads((tmp_path / "runs.json").read_text())
    assert (recorded["seed"], recorded["examples"], recorded["weighed"], recorded["findings"]) == (5, 30, 3, [])
