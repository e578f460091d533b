"""One pass against the five phases: the same rows, ledgers and proof, whatever the flags, the job and the layout."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cdr_core.errors import Corrupt, Refused, SettingsRefused
from cdr_core.flink.keys import key_groups, owner
from cdr_core.flink.types import parse_type
from cdr_core.metadata import CommandState, Phase, PhaseState
from cdr_core.phases.onepass import reading
from cdr_core.rescale import owners, source
from cdr_core.rescale.scanning import said
from cdr_core.rescale.source import open_channel
from cdr_core.storage import s3
from tests.phases.test_quarantine import BAD, Damaged, in_length
from tests.phases.test_thread import compare
from tests.support import inline, output
from tests.support.bucket import Bucket, CountingClient, key_of
from tests.support.checkpoints import FixtureCheckpoints
from tests.support.onepass import one_pass, passed, phased, request, set_flags, set_small
from tests.support.written import SPEC, latency_marker, record, status, watermark, write_checkpoint

BOTH_FLAGS = [(True, True), (True, False), (False, True), (False, False)]


@pytest.mark.parametrize(
    ("name", "number", "parallelism"),
    [
        ("a_p3_thr0", 2, "2"),
        ("a_p3_thr0", 2, "5"),
        ("a_p3_thr1mb", 2, "2"),
        ("b_p3_thr0", 2, "2"),
        ("d_p4_thr0", 2, "3"),
        ("e_p4_seg32k", 2, "6"),
        ("f_p3_thr0", 2, "2"),
        ("g_p7_thr0", 2, "2"),
        ("v5_a_p3_thr0", 1, "same"),
        ("c_p7_thr0", 2, "2"),
    ],
)
def test_rows_ledgers_and_proof_are_those_of_the_five_phases(
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    number: int,
    parallelism: str,
) -> None:
    """000-22, 002-04, F.3-10: every stored ledger line of every phase, the proof, the table; nothing of it spilled."""
    checkpoint = fixture_checkpoint(name, number)
    source = str(checkpoint.path), str(checkpoint.spec), parallelism
    before = phased(request(*source, tmp_path / "phased"))
    set_flags(monkeypatch, tmp_path / "spill")
    after, counters = passed(request(*source, tmp_path / "passed", one_pass=True))
    assert after.ledgers == before.ledgers
    assert after.table == before.table
    assert after.receipt["proof"] == before.receipt["proof"]
    assert after.receipt["other_elements"] == before.receipt["other_elements"]
    assert after.watermarks == before.watermarks
    assert counters["disk_bytes"] == counters["replay_bytes"] == counters["spill_files"] == 0
    assert [row.state for row in after.repository.phases(after.recovery)] == [PhaseState.DONE] * 5
    assert len(after.repository.attempts(after.recovery)) == 2, "one attempt up to commit, and commit's"


@pytest.mark.parametrize(("output_downstream", "checkpoints"), BOTH_FLAGS)
def test_only_both_flags_together_spill_and_the_result_is_the_same(
    fixture_checkpoint: FixtureCheckpoints,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    output_downstream: bool,
    checkpoints: bool,
) -> None:
    """001-18, 002-11: the truth table; without both no spill directory is configured, and none is needed."""
    set_flags(monkeypatch, tmp_path / "spill", output=output_downstream, checkpoints=checkpoints)
    set_small(monkeypatch, 4)
    monkeypatch.setenv("CDR_FAULTS", "onepass.page=sleep:0.001")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    wish = request(str(checkpoint.path), str(checkpoint.spec), "2", tmp_path / "out", one_pass=True)
    after, counters = passed(wish)
    compare(after.rows, checkpoint, 2)
    spilled = counters["disk_bytes"] + counters["replay_bytes"]
    assert (spilled > 0) == (counters["spill_files"] > 0) == (output_downstream and checkpoints)
    assert counters["memory_bytes"] > 0
    assert counters["most_pages"] <= 4


def test_what_fits_goes_from_memory_and_makes_no_spill_file(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """000-03: all of it by the first path; not even a directory is made."""
    set_flags(monkeypatch, tmp_path / "spill")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    wish = request(str(checkpoint.path), str(checkpoint.spec), "2", tmp_path / "out", one_pass=True)
    after, counters = passed(wish)
    lines = after.ledgers["spill"]
    lengths = sum(4 * (line["records"] + sum(line["others"].values())) for line in lines)
    assert counters["memory_bytes"] >= sum(line["bytes"] for line in lines) + lengths - 8 * len(lines)
    assert (counters["disk_bytes"], counters["replay_bytes"], counters["spill_files"]) == (0, 0, 0)
    assert list((tmp_path / "spill").iterdir()) == []


def test_spill_directories_are_required_where_one_pass_spills(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """002-11, 002-27, E16: refused before anything is made, with exit status 3; five phases do without."""
    set_flags(monkeypatch, tmp_path / "spill")
    monkeypatch.delenv("CDR_SPILL_DIRS")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    source = str(checkpoint.path), str(checkpoint.spec), "2"
    with pytest.raises(SettingsRefused, match="no spill directory is configured") as refused:
        inline.start(request(*source, tmp_path / "out", one_pass=True))
    assert refused.value.exit_code == 3
    inline.start(request(*source, tmp_path / "other"))[0].close()


def test_channels_with_one_possible_owner_are_not_decoded_and_channels_are_read_one_after_another(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """000-19, 000-21, 001-06: no interleaving within a task; at the same parallelism the read page is never used."""
    opened: list[int] = []
    seen: list[int] = []

    def open_noted(plan: Any, number: int) -> Any:
        opened.append(number)
        return open_channel(plan, number)

    def said_noted(window: Any, last: Any) -> Any:
        seen.append(opened[-1])
        return said(window, last)

    def decoded(*_: Any) -> None:
        raise AssertionError("a channel that passes through was decoded")

    monkeypatch.setattr(reading, "open_channel", open_noted)
    monkeypatch.setattr(reading, "said", said_noted)
    monkeypatch.setattr(owners, "record_owners", decoded)
    monkeypatch.setattr(reading, "paged_windows", decoded)
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    wish = request(str(checkpoint.path), str(checkpoint.spec), "same", tmp_path / "out", one_pass=True)
    _, counters = passed(wish)
    assert counters["read_page_bytes"] == 0
    assert len(opened) == len(set(opened)) == 9
    assert [number for number in opened if number in seen] == list(dict.fromkeys(seen))


@pytest.mark.parametrize("partitioner", ["hash", "rebalance"])
def test_closing_elements_and_replicas_are_those_of_the_five_phases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitioner: str
) -> None:
    """F.3-10: watermarks that merge, statuses, markers; the rule is one, whichever way it runs, and so is the result's
    watermark.
    """
    channels = {
        (up, down): b"".join(
            [record(key, time=key) for key in range(200) if _owner(key, 3) == down or partitioner == "rebalance"]
            + [latency_marker(), watermark(100 + 10 * up + down), record(_key_of(down, 3)), status(idle=up == 1)]
        )
        for up in range(3)
        for down in range(3)
    }
    folder = write_checkpoint(tmp_path / "chk-1", 3, 3, channels)
    spec = SPEC.format(partitioner=partitioner)
    set_flags(monkeypatch, tmp_path / "spill")
    for parallelism in ("2", "gen=3,slow=2", "gen=1,slow=4", "4"):
        before = phased(request(folder, spec, parallelism, tmp_path / f"phased-{parallelism}"))
        wish = request(folder, spec, parallelism, tmp_path / f"passed-{parallelism}", one_pass=True)
        after, _ = passed(wish)
        assert after.ledgers == before.ledgers
        assert after.table == before.table
        assert after.receipt["proof"] == before.receipt["proof"]
        assert after.watermarks == before.watermarks
        assert after.receipt["other_elements"] == before.receipt["other_elements"]


def _owner(key: int, parallelism: int) -> int:
    data = np.frombuffer(key.to_bytes(8, "big") + bytes([2]) + b"x", np.uint8)
    description = parse_type("TUPLE<LONG, STRING>")
    group = key_groups(description, ("f0",), data, np.array([0]), np.array([len(data)]), 128)[0]
    return owner(int(group), parallelism, 128)


def _key_of(down: int, parallelism: int) -> int:
    return next(key for key in range(10_000) if _owner(key, parallelism) == down)


def test_quarantine_puts_the_same_bytes_aside(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F.3-10: a damaged channel with several possible owners is put aside once, and none of them reads behind it."""
    damaged = Damaged(fixture_checkpoint("a_p3_thr0", 2), tmp_path / "chk-2")
    in_length(damaged, damaged.frames(BAD)[40])
    source = str(damaged.folder), str(damaged.original.spec), "2"
    with pytest.raises(Corrupt):
        passed(request(*source, tmp_path / "failed", one_pass=True))
    before = phased(request(*source, tmp_path / "phased", on_corrupt="quarantine"))
    set_flags(monkeypatch, tmp_path / "spill")
    after, _ = passed(request(*source, tmp_path / "passed", on_corrupt="quarantine", one_pass=True))
    assert after.receipt["verdict"] == before.receipt["verdict"] == "partial"
    assert after.receipt["proof"] == before.receipt["proof"]
    assert after.table == before.table


def test_one_way_cannot_go_on_with_what_the_other_began(fixture_checkpoint: FixtureCheckpoints, tmp_path: Path) -> None:
    """Refused in one sentence, whoever asks; while nothing is done, and when the drain is, either way is fine."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    source = str(checkpoint.path), str(checkpoint.spec), "2"
    repository, recovery, settings = inline.start(request(*source, tmp_path / "one", one_pass=True))
    assert repository.recovery(recovery).settings["one_pass"] is True
    inline.run(repository, recovery, Phase.READ, settings)
    with pytest.raises(Refused, match=r"was begun in five phases and cannot go on in one pass.*without --one-pass"):
        one_pass(repository, recovery, settings)
    inline.run_all(repository, recovery, settings)
    one_pass(repository, recovery, settings)

    repository, recovery, settings = inline.start(request(*source, tmp_path / "two"))

    class Dying(inline.InlineWorkers):
        def run(self, drive: Any, payload: str, units: Any, on_poll: Any) -> None:
            super().run(drive, payload, units[:1], on_poll)
            raise OSError("the machine is on fire")

    with pytest.raises(Exception, match="on fire"):
        one_pass(repository, recovery, settings, Dying())
    with pytest.raises(Refused, match=r"was begun in one pass and cannot go on in five phases.*with --one-pass"):
        inline.run(repository, recovery, Phase.READ, settings)
    workers = inline.InlineWorkers()
    one_pass(repository, recovery, settings, workers)
    assert workers.done == ["read/00001"], "the subtask that had a row is not done again"
    inline.run(repository, recovery, Phase.COMMIT, settings)
    compare(output.rows(tmp_path / "two"), checkpoint, 2)


def test_a_checkpoint_request_is_not_ready_until_the_end(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B.2, E26: nothing can be cut while subtasks read; the request is answered, not counted, and may be repeated."""
    monkeypatch.setattr("cdr_core.phases.driver.HEARTBEAT_SECONDS", 0.0)
    set_flags(monkeypatch, tmp_path / "spill")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    wish = request(str(checkpoint.path), str(checkpoint.spec), "2", tmp_path / "out", one_pass=True)
    repository, recovery, settings = inline.start(wish)
    command = repository.request(recovery, "checkpoint", {})
    one_pass(repository, recovery, settings)
    answered = next(each for each in repository.commands(recovery) if each.id == command.id)
    assert answered.state is CommandState.REFUSED
    assert (answered.answer or {})["not_ready"] is True
    assert [row.checkpoint_id for row in repository.checkpoints(recovery)] == [1], "only the one at the end"


def test_reading_ends_before_the_rest_is_drained(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """000-17: reading is done before the drain of the rest begins, in every task."""
    log = tmp_path / "log"
    monkeypatch.setenv("CDR_FAULTS_LOG", str(log))
    monkeypatch.setenv("CDR_FAULTS", f"onepass.read-done=pause:{tmp_path / 'no'},onepass.drain=pause:{tmp_path / 'no'}")
    set_flags(monkeypatch, tmp_path / "spill")
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    wish = request(str(checkpoint.path), str(checkpoint.spec), "2", tmp_path / "out", one_pass=True)
    passed(wish)
    assert [line.split()[0] for line in log.read_text().splitlines()] == ["onepass.read-done", "onepass.drain"] * 2


def test_a_source_on_s3_is_fetched_once_however_many_subtasks_read_it(
    bucket: Bucket, fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """000-22: it is staged first, in the same attempt; rows and proof are those of the local copy."""
    client = CountingClient(bucket.client)
    monkeypatch.setattr(s3, "_client", lambda _endpoint: client)
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    where = bucket.upload(checkpoint.path)
    before = phased(request(str(checkpoint.path), str(checkpoint.spec), "5", tmp_path / "phased"))
    for cached in (source.open_planned, source._slices, source._fetched):
        cached.cache_clear()  # as in a process of its own
    wish = request(where, str(checkpoint.spec), "5", tmp_path / "passed", one_pass=True)
    inline.start(wish)  # which looks at a sample
    client.ranges.clear()
    with monkeypatch.context() as patched:
        patched.setattr("cdr_core.phases.request.gather_evidence", lambda *_, **__: ())
        after, _ = passed(wish)
    assert after.table == before.table
    assert after.ledgers == before.ledgers
    assert after.receipt["run"]["fetched_bytes"] > 0
    fetched = {path.name: key_of(f"{where}/{path.name}") for path in checkpoint.path.iterdir()}
    ranges = {name: sorted(r[1:] for r in client.ranges if r[0] == key) for name, key in fetched.items()}
    del ranges["_metadata"]  # it is read to make the plan, and staged
    assert any(ranges.values())
    for mine in ranges.values():
        assert all(end <= start for (_, end), (start, _) in pairwise(mine)), "a byte came twice"


@pytest.mark.parametrize("commit", ["at-end", "per-checkpoint"])
def test_both_commit_modes_publish_the_one_checkpoint_of_a_pass(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: str
) -> None:
    """F.3-10: the end of the pass is a recovery checkpoint, so there is one to publish in either mode."""
    monkeypatch.setenv("CDR_COMMIT", commit)
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    after, _ = passed(request(str(checkpoint.path), str(checkpoint.spec), "2", tmp_path / "out", one_pass=True))
    compare(after.rows, checkpoint, 2)
    assert len(list((tmp_path / "out").glob("_cdr/manifest-*"))) == 1
