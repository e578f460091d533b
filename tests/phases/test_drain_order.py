"""Exchanges that are drained, and published, before others."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cdr_core.drain import checkpoint_driver as watch
from cdr_core.drain.checkpoint_manifest import write_manifest
from cdr_core.errors import Refused, StorageError
from cdr_core.metadata import Phase
from cdr_core.recovery.recovery_request import RecoveryRequest
from tests.seeds.expected import compare, records_of
from tests.support import draining, inline, output
from tests.support.checkpoints import FIXTURES, FixtureCheckpoints
from tests.support.draining import Started, make_slow

SPEC = FIXTURES / "specs" / "g.yaml"


@pytest.fixture(params=["at-end", "per-checkpoint"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    make_slow(monkeypatch, "drain.page=sleep:0.001")
    monkeypatch.setenv("CDR_TABLE_RAW", "true")
    monkeypatch.setenv("CDR_SEGMENT_SIZE", "8KiB")
    monkeypatch.setenv("CDR_COMMIT", request.param)
    return str(request.param)


def spilled(path: str, out: Path, order: tuple[str, ...]) -> Started:
    request = RecoveryRequest(path, str(SPEC), "3", f"parquet:{out}", "50ms", drain_order=order)
    return draining.spilled(request)


def names(spec: Path = SPEC) -> list[str]:
    """The exchanges of the spec, in the order of their gates."""
    import yaml

    return [str(each["name"]) for each in yaml.safe_load(spec.read_text())["exchanges"]]


def publications(out: Path) -> list[set[str]]:
    """By publication, the exchanges whose records became visible with it."""
    found, before = [], set[str]()
    for path in sorted(out.glob("_cdr/manifest-*.json"), key=lambda each: int(each.stem.split("-")[1])):
        files = {file["path"] for file in json.loads(path.read_text())["files"]}
        tables = [pq.read_table(out / name, columns=["exchange"]) for name in files - before]
        found.append({str(value) for table in tables for value in table["exchange"].to_pylist()})
        before |= files
    return found


@pytest.mark.parametrize("killed", [False, True])
def test_exchanges_of_the_order_come_first(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, mode: str, killed: bool
) -> None:
    """002-33, 002-34, 002-50, E24: in every subtask, and published everywhere before the next one is; each record once,
    also where a drain dies on its way.
    """
    path = str(fixture_checkpoint("g_p7_thr0", 2).path)
    first = names()[-1]
    started = spilled(path, tmp_path / "out", (first,))
    repository, recovery, settings = started
    if killed:
        child = draining.drain_in_child(recovery, f"drain.snapshot=once:{tmp_path / 'killed'}:kill")
        assert draining.exit_status(child) == -signal.SIGKILL
    inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
    for unit in repository.units(recovery, Phase.DRAIN):
        seen: list[str] = []
        for file in unit.result["files"]:
            seen += pq.read_table(tmp_path / "out" / file["path"], columns=["exchange"])["exchange"].to_pylist()
        assert seen == sorted(seen, key=lambda name: name != first), "one exchange, then the others"
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    assert compare(output.rows(tmp_path / "out"), records_of(path, str(SPEC)), 3).is_exact
    if mode == "per-checkpoint":
        visible = publications(tmp_path / "out")
        others = [number for number, exchanges in enumerate(visible) if exchanges - {first}]
        assert others
        assert all(visible[number] == {first} for number in range(others[0]))
        assert not any(first in exchanges for exchanges in visible[others[0] :])
    repository.close()


@pytest.mark.parametrize("mode", ["per-checkpoint"], indirect=True)
def test_a_round_ends_with_a_publication_also_where_its_checkpoint_is_given_up(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next exchange begins only when a later checkpoint has published the first."""
    monkeypatch.setenv("CDR_CHECKPOINT_TIMEOUT", "0s")
    failed: list[int] = []
    real = write_manifest

    def fails_once(*arguments: Any) -> tuple[str, str]:
        if not failed:
            failed.append(1)
            raise StorageError("the disk is away")
        return real(*arguments)

    monkeypatch.setattr(watch, "write_manifest", fails_once)
    path, first = str(fixture_checkpoint("g_p7_thr0", 2).path), names()[-1]
    request = RecoveryRequest(path, str(SPEC), "3", f"parquet:{tmp_path / 'out'}", "0s", drain_order=(first,))
    repository, recovery, settings = draining.spilled(request)
    inline.run(repository, recovery, Phase.DRAIN, settings, inline.ThreadedWorkers())
    assert failed
    assert publications(tmp_path / "out") == [{first}]
    assert inline.run(repository, recovery, Phase.COMMIT, settings)["verdict"] == "balanced"
    assert publications(tmp_path / "out") == [{first}, set(names()) - {first}]
    repository.close()


@pytest.mark.parametrize(
    ("order", "match"),
    [(("nothing",), "names 'nothing', which is no exchange; use "), ((names()[0],) * 2, f"names '{names()[0]}' twice")],
)
def test_an_order_that_makes_no_sense_is_refused(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, order: tuple[str, ...], match: str
) -> None:
    path = str(fixture_checkpoint("g_p7_thr0", 2).path)
    with pytest.raises(Refused, match=match):
        spilled(path, tmp_path / "out", order)


def test_the_order_is_an_option_of_the_recovery(fixture_checkpoint: FixtureCheckpoints, tmp_path: Path) -> None:
    """Asked again in another order, the recovery that exists is not changed silently."""
    path = str(fixture_checkpoint("g_p7_thr0", 2).path)
    repository, recovery, _ = spilled(path, tmp_path / "out", (names()[1],))
    assert repository.recovery(recovery).options.drain_order == (names()[1],)
    with pytest.raises(Refused, match="options"):
        spilled(path, tmp_path / "out", ())
    repository.close()
