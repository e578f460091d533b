"""Damaged channel state: by default nothing is published; with quarantine exactly what is before the damage is."""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cdr_core.channels import channel_scan as scanning
from cdr_core.cli import main as shell
from cdr_core.errors import Corrupt, Refused, SpecRefused, Unbalanced
from cdr_core.metadata import Phase, RecoveryState
from cdr_core.recovery.recovery_request import RecoveryRequest
from cdr_core.runtime import quarantine
from cdr_core.runtime.driver import PhaseRun
from tests.support import inline, output
from tests.support.checkpoints import FixtureCheckpoint, FixtureCheckpoints
from tests.support.damage import BAD, Channel, Damaged, in_length, plan_of, rewrite, some_record
from tests.support.written import SPEC, frame, record, watermark, write_checkpoint


def start(checkpoint: str, spec: str, to: Path, on_corrupt: str = "quarantine", parallelism: str = "2") -> Any:
    return inline.start(
        RecoveryRequest(checkpoint, spec, parallelism, f"parquet:{to}", on_corrupt=on_corrupt),
    )


def recover(checkpoint: str, spec: str, to: Path, parallelism: str = "2") -> tuple[list[dict[str, Any]], Any]:
    """The published rows, and the receipt of a recovery that must be partial."""
    repository, recovery, settings = start(checkpoint, spec, to, parallelism=parallelism)
    assert inline.run_all(repository, recovery, settings)["verdict"] == "partial"
    assert repository.recovery(recovery).state is RecoveryState.DONE
    return output.rows(to), repository.receipt(recovery)


def positions(rows: list[dict[str, Any]]) -> dict[Channel, list[int]]:
    found: dict[Channel, list[int]] = {}
    for row in rows:
        found.setdefault((row["up"], row["down"]), []).append(row["pos"])
    return {pair: sorted(each) for pair, each in found.items()}


def oracle_positions(checkpoint: FixtureCheckpoint, ends: dict[Channel, int]) -> dict[Channel, list[int]]:
    """What Flink read, up to the element with which a channel ends."""
    found: dict[Channel, list[int]] = {}
    for element in checkpoint.oracle.records:
        pair = element.channel.up, element.channel.down
        if element.pos < ends.get(pair, sys.maxsize):
            found.setdefault(pair, []).append(element.pos)
    return found


@pytest.fixture
def damaged(fixture_checkpoint: FixtureCheckpoints, tmp_path: Path) -> Damaged:
    return Damaged(fixture_checkpoint("a_p3_thr0", 2), tmp_path / "chk-2")


def in_key(copy: Damaged, at: int) -> None:
    copy.flip(BAD, at + 5 + 8 * (copy.data(BAD)[at + 4] == 0), 6)


def in_tag(copy: Damaged, at: int) -> None:
    copy.flip(BAD, at + 4, 6)


def in_text_length(copy: Damaged, at: int) -> None:
    copy.flip(BAD, at + 5 + 8 * (copy.data(BAD)[at + 4] == 0) + 20, 0)


FLIPS = [in_length, in_key, in_tag, in_text_length]


@pytest.mark.parametrize("flip", FLIPS)
def test_one_flipped_bit_costs_the_channel_its_end_and_nothing_else(
    damaged: Damaged, tmp_path: Path, flip: Callable[[Damaged, int], None]
) -> None:
    number = some_record(damaged)
    offset, size = damaged.frames(BAD)[number], len(damaged.data(BAD))
    flip(damaged, offset)
    rows, receipt = recover(str(damaged.folder), str(damaged.original.spec), tmp_path / "out")
    assert positions(rows) == oracle_positions(damaged.original, {BAD: number})
    (line,) = receipt["run"]["quarantine"]
    assert (line["exchange"], line["up"], line["down"], line["gate"]) == ("main", *BAD, 0)
    assert (line["offset"], line["bytes"], line["from_pos"]) == (offset, size - offset, number)
    assert line["reason"]
    aside = Path(line["file"])
    assert aside.read_bytes() == damaged.data(BAD)[offset:]
    assert hashlib.sha256(aside.read_bytes()).hexdigest() == line["sha256"]
    assert json.loads(Path(f"{aside}.json").read_text()) == line
    assert "/e1/quarantine/" in str(aside)
    (proved,) = receipt["proof"]["quarantine"]
    assert proved.items() <= {**line, "records": None}.items()


@pytest.mark.parametrize("flip", FLIPS)
def test_by_default_a_flipped_bit_fails_the_run_with_its_place_and_nothing_is_published(
    damaged: Damaged, tmp_path: Path, flip: Callable[[Damaged, int], None]
) -> None:
    offset = damaged.frames(BAD)[some_record(damaged)]
    flip(damaged, offset)
    repository, recovery, settings = start(
        str(damaged.folder), str(damaged.original.spec), tmp_path / "out", on_corrupt="fail"
    )
    with pytest.raises((Corrupt, SpecRefused)) as caught:
        inline.run_all(repository, recovery, settings)
    assert (caught.value.where.channel, caught.value.where.subtask) == BAD
    if flip is not in_key:  # a key that belongs elsewhere is taken for a wrong spec first
        assert caught.value.exit_code == 5
        found = caught.value.where.offset
        assert found is not None
        assert found == offset or (flip is in_length and found > offset), "a longer record ends where nothing begins"
    assert repository.recovery(recovery).state is RecoveryState.FAILED
    assert output.manifest(tmp_path / "out") is None


def test_a_truncated_file_costs_only_what_was_in_the_missing_part(damaged: Damaged, tmp_path: Path) -> None:
    """Channels whose chunks reach beyond the cut keep every record that was whole before it."""
    file = max((f for f in damaged.folder.iterdir() if f.name != "_metadata"), key=lambda f: f.stat().st_size)
    whole, cut = {pair: damaged.data(pair) for pair in damaged.numbers}, 60_000
    elements = {pair: damaged.frames(pair) for pair in damaged.numbers}
    rewrite(file, file.read_bytes()[:cut])
    rows, receipt = recover(str(damaged.folder), str(damaged.original.spec), tmp_path / "out")
    ends = {(line["up"], line["down"]): line["from_pos"] for line in receipt["run"]["quarantine"]}
    assert len(ends) >= 2
    assert positions(rows) == oracle_positions(damaged.original, ends)
    for line in receipt["run"]["quarantine"]:
        pair = line["up"], line["down"]
        assert line["offset"] == elements[pair][line["from_pos"]]
        assert line["unreadable"] > 0
        assert line["offset"] + line["bytes"] + line["unreadable"] == len(whole[pair])
        aside = Path(line["file"]).read_bytes()
        tail = whole[pair][line["offset"] :]
        head = next((n for n, (a, b) in enumerate(zip(aside, tail, strict=False)) if a != b), len(aside))
        assert whole[pair].endswith(aside[head:]), "what is before the hole, then what is behind it"
    assert any(from_pos > 0 for from_pos in ends.values())


@pytest.mark.parametrize("missing", [1, 10, 60, 70])
def test_a_chunk_that_is_cut_short_keeps_the_records_that_are_whole_in_it(tmp_path: Path, missing: int) -> None:
    rows = [record(_key(0), letter * 40) for letter in "abc"]
    channels = {(0, 0): (b"".join(rows), b""), (0, 1): (record(_key(1)), b"")}
    checkpoint = write_checkpoint(tmp_path / "chk", 1, 2, channels)
    file = tmp_path / "chk" / "in-0"
    rewrite(file, file.read_bytes()[:-missing])
    published, receipt = recover(checkpoint, SPEC.format(partitioner="hash"), tmp_path / "out", "same")
    whole = (3 * len(rows[0]) - missing) // len(rows[0])
    assert positions(published) == {(0, 0): list(range(whole)), (0, 1): [0]}
    (line,) = receipt["run"]["quarantine"]
    assert (line["offset"], line["unreadable"]) == (whole * len(rows[0]), missing)
    assert Path(line["file"]).read_bytes() == b"".join(rows)[line["offset"] : -missing]


def test_a_deleted_file_costs_its_channels_and_their_readable_bytes_are_put_aside(tmp_path: Path) -> None:
    """Without the input state the output state of a connection begins nowhere: all of it goes to quarantine."""
    rows = {(up, down): record(_key(down), f"{up} to {down}") * 4 for up in range(2) for down in range(2)}
    checkpoint = write_checkpoint(tmp_path / "chk", 2, 2, rows)
    (tmp_path / "chk" / "in-1").unlink()
    spec = SPEC.format(partitioner="hash")
    published, receipt = recover(checkpoint, spec, tmp_path / "out", "gen=2,slow=3")
    assert positions(published) == {(0, 0): [0, 1, 2, 3], (1, 0): [0, 1, 2, 3]}
    for line in receipt["run"]["quarantine"]:
        data = rows[line["up"], line["down"]]
        assert line["down"] == 1
        assert "missing" in line["reason"]
        assert (line["offset"], line["bytes"], line["unreadable"]) == (0, len(data) - len(data) // 2, len(data) // 2)
        assert Path(line["file"]).read_bytes() == data[len(data) // 2 :]


def test_a_deleted_output_file_keeps_the_records_that_are_whole_without_it(tmp_path: Path) -> None:
    one, two = record(_key(0), "one"), record(_key(0), "two")
    checkpoint = write_checkpoint(
        tmp_path / "chk", 1, 2, {(0, 0): (one + two[:9], two[9:]), (0, 1): (record(_key(1)), b"")}
    )
    (tmp_path / "chk" / "out-0").unlink()
    published, receipt = recover(checkpoint, SPEC.format(partitioner="hash"), tmp_path / "out", "same")
    assert positions(published) == {(0, 0): [0], (0, 1): [0]}
    (line,) = receipt["run"]["quarantine"]
    assert (line["offset"], line["bytes"], line["unreadable"]) == (len(one), 9, len(two) - 9)


def _key(subtask: int) -> int:
    from tests.phases.keys import key_of

    return key_of(subtask, 2)


def test_chunks_that_do_not_add_up_to_what_the_handle_says_are_not_believed(tmp_path: Path) -> None:
    """A shorter chunk would join the head of one record to the tail of another."""
    first, second = record(_key(0), "a" * 50), record(_key(0), "b" * 50)
    checkpoint = write_checkpoint(
        tmp_path / "chk", 1, 2, {(0, 0): (first + second, b""), (0, 1): (record(_key(1)), b"")}
    )
    file = tmp_path / "chk" / "in-0"
    data = bytearray(file.read_bytes())
    assert data[7] == len(first + second)
    data[7] -= len(second)
    file.write_bytes(data)
    published, receipt = recover(checkpoint, SPEC.format(partitioner="hash"), tmp_path / "out", "same")
    assert positions(published) == {(0, 1): [0]}
    (line,) = receipt["run"]["quarantine"]
    assert "where the handle states" in line["reason"]
    assert (line["offset"], line["bytes"], line["unreadable"]) == (0, len(first), len(second))


@pytest.mark.parametrize("flipped", [30, 200, 2000])
def test_damage_of_the_metadata_itself_is_never_salvaged(damaged: Damaged, tmp_path: Path, flipped: int) -> None:
    file = damaged.folder / "_metadata"
    file.write_bytes(file.read_bytes()[:flipped])
    with pytest.raises(Corrupt):
        start(str(damaged.folder), str(damaged.original.spec), tmp_path / "out")
    assert output.manifest(tmp_path / "out") is None


def test_a_sound_checkpoint_is_whole_in_quarantine_mode_too(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path
) -> None:
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    repository, recovery, settings = start(str(checkpoint.path), str(checkpoint.spec), tmp_path / "out")
    assert inline.run_all(repository, recovery, settings)["verdict"] == "balanced"
    assert positions(output.rows(tmp_path / "out")) == oracle_positions(checkpoint, {})
    assert not list(Path(repository.recovery(recovery).workspace).rglob("quarantine"))


@pytest.mark.parametrize("change", [("[f0]", "[f1]"), ("TUPLE<LONG, INT", "TUPLE<INT, LONG")])
def test_a_wrong_spec_is_not_taken_for_damage(
    fixture_checkpoint: FixtureCheckpoints, tmp_path: Path, change: tuple[str, str]
) -> None:
    """Otherwise a typing error would publish an empty table and call it partial."""
    checkpoint = fixture_checkpoint("a_p3_thr0", 2)
    spec = checkpoint.spec.read_text().replace(*change)
    with pytest.raises(SpecRefused, match="is keyed by LONG; correct the job spec"):
        start(str(checkpoint.path), spec, tmp_path / "out")
    assert output.manifest(tmp_path / "out") is None


def test_a_wrong_spec_of_a_single_channel_is_not_taken_for_damage_either(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "chk", 1, 1, {(0, 0): record(1) * 3})
    spec = SPEC.format(partitioner="rebalance").replace("LONG, STRING", "LONG, LONG")
    repository, recovery, settings = start(checkpoint, spec, tmp_path / "out", parallelism="same")
    with pytest.raises(SpecRefused, match="of 1 of 1 channels"):
        inline.run_all(repository, recovery, settings)


def broken(key: int) -> bytes:
    """A record that frames, whose text is longer than the record."""
    return frame(b"\x01" + struct.pack(">q", key) + b"\x7f" + b"text")


def test_a_first_record_that_does_not_fit_before_one_that_does_is_damage_and_not_the_spec(tmp_path: Path) -> None:
    ups, rows = 2, broken(1) + record(1) * 2
    checkpoint = write_checkpoint(tmp_path / "chk", ups, 1, {(up, 0): (rows, b"") for up in range(ups)})
    published, receipt = recover(checkpoint, SPEC.format(partitioner="rebalance"), tmp_path / "out", "same")
    assert published == []
    assert [(line["offset"], line["bytes"]) for line in receipt["run"]["quarantine"]] == [(0, len(rows))] * ups


def test_behind_a_first_record_longer_than_a_window_the_next_one_counts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "WINDOW", 16)
    for rows, fits in ((broken(1) + watermark(3) + record(1), True), (broken(1) * 2, False), (broken(1), False)):
        checkpoint = write_checkpoint(tmp_path / f"chk-{len(rows)}", 1, 1, {(0, 0): (rows, b"")})
        plan = plan_of(checkpoint, SPEC.format(partitioner="rebalance"), "same")
        _, _, damage = scanning.salvage_channel(plan, 0)
        assert damage is not None
        assert (damage.offset, damage.next_fits) == (0, fits)


LONE = frame(b"\x01" + struct.pack(">q", 1) + bytes([2, 0x80, 0xB0, 0x03]))
"""A record whose text is half of a surrogate pair: Java allows it, no table can show it."""


def test_what_only_a_table_cannot_show_is_sound_where_bytes_are_taken_as_they_are(tmp_path: Path) -> None:
    """For a table it is put aside with its reason: neither lost without a trace nor changed."""
    rows = record(1) + LONE + record(1) + LONE
    spec = SPEC.format(partitioner="rebalance")
    checkpoint = write_checkpoint(tmp_path / "chk", 1, 1, {(0, 0): (rows, b"")})
    asked = RecoveryRequest(checkpoint, spec, "same", "none:raw", on_corrupt="quarantine")
    assert inline.run_all(*inline.start(asked))["verdict"] == "balanced"
    published, receipt = recover(checkpoint, spec, tmp_path / "out", "same")
    assert positions(published) == {(0, 0): [0]}
    assert "surrogate" in receipt["run"]["quarantine"][0]["reason"]
    assert Path(receipt["run"]["quarantine"][0]["file"]).read_bytes() == rows[len(record(1)) :]


def test_behind_what_cannot_be_shown_damage_is_still_found(tmp_path: Path) -> None:
    rows = [record(1), LONE, LONE, record(1), broken(1), record(1)]
    subclass = frame(b"\x01\x04" + struct.pack(">H", 1) + b"C" + b"\x02\x00" + struct.pack(">q", 1))
    plain = frame(b"\x01\x02\x00" + struct.pack(">q", 1))
    for number, (elements, record_type, at) in enumerate(
        [(rows, "TUPLE<LONG, STRING>", 4), ([plain, subclass, plain, frame(plain[4:] + b"\0")], "POJO<id LONG>", 3)]
    ):
        checkpoint = write_checkpoint(tmp_path / f"chk-{number}", 1, 1, {(0, 0): (b"".join(elements), b"")})
        spec = SPEC.format(partitioner="rebalance").replace("TUPLE<LONG, STRING>", record_type)
        plan = plan_of(checkpoint, spec.replace("key: [f0]", ""), "same")
        for shown, first in ((True, 1), (False, at)):
            scanned, _, damage = scanning.salvage_channel(plan, 0, shown=shown)
            assert damage is not None
            assert damage.offset == sum(map(len, elements[:first]))
            assert scanned["entry"]["records"] == first


def test_the_last_watermark_of_a_damaged_channel_is_that_before_the_damage(tmp_path: Path) -> None:
    sound = record(_key(0)) + watermark(5)
    channels = {(0, 0): (sound + frame(b"\x09bad") + watermark(9), b""), (0, 1): (record(_key(1)) + watermark(7), b"")}
    checkpoint = write_checkpoint(tmp_path / "chk", 1, 2, channels)
    repository, recovery, settings = start(
        checkpoint, SPEC.format(partitioner="hash"), tmp_path / "out", parallelism="gen=1,slow=1"
    )
    inline.run_all(repository, recovery, settings)
    drive = PhaseRun(repository, repository.recovery(recovery), Phase.SPILL, 0, settings)
    from cdr_core.phases.spill import closing_elements
    from cdr_core.runtime.phase_outputs import scanned_by

    assert closing_elements(drive.plan, scanned_by(drive)).watermark.tolist() == [5]


def test_bytes_that_are_neither_recovered_nor_put_aside_fail_the_phase(
    damaged: Damaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_tag(damaged, damaged.frames(BAD)[some_record(damaged)])
    repository, recovery, settings = start(str(damaged.folder), str(damaged.original.spec), tmp_path / "out")
    whole = quarantine._written
    monkeypatch.setattr(quarantine, "_written", lambda *given: {**whole(*given), "bytes": 1})
    with pytest.raises(Unbalanced, match="bytes recovered and 1 in quarantine") as caught:
        inline.run(repository, recovery, Phase.READ, settings)
    assert (caught.value.where.channel, caught.value.where.subtask) == BAD


def test_the_shell_ends_with_six_also_when_it_is_asked_again_and_the_receipt_says_why(
    damaged: Damaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_tag(damaged, damaged.frames(BAD)[some_record(damaged)])
    repository, recovery, settings = start(str(damaged.folder), str(damaged.original.spec), tmp_path / "out")
    inline.run_all(repository, recovery, settings)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cdr", *arguments])
        with pytest.raises(SystemExit) as ended:
            shell.run()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    asked = ["recover", str(damaged.folder), "--spec", str(damaged.original.spec), "--parallelism", "2"]
    asked += ["--to", f"parquet:{tmp_path / 'out'}", "--json"]
    status, shown, said = run(*asked, "--on-corrupt", "quarantine")
    assert (status, json.loads(shown)["verdict"]) == (6, "partial")
    assert f"cdr receipt {recovery}" in said
    assert run("phase", "commit", recovery, "--json")[0] == 6
    status, shown, _ = run("receipt", recovery, "--json")
    assert status == 0
    assert json.loads(shown)["proof"]["quarantine"][0]["down"] == BAD[1]
    aside = [Path(line["file"]) for line in json.loads(shown)["run"]["quarantine"]]
    assert run("sweep")[0] == 0
    assert aside[0].stat().st_size > 0, "what was put aside outlives what a finished recovery no longer needs"
    assert Path(f"{aside[0]}.json").exists()
    # The choice changes the result, so another one for the same checkpoint and target is refused.
    assert run(*asked)[0] == 3
    assert run(*asked, "--on-corrupt", "ignore")[0] == 3


def test_an_unknown_choice_is_refused_before_anything_runs(damaged: Damaged, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="fail, quarantine"):
        start(str(damaged.folder), str(damaged.original.spec), tmp_path / "out", on_corrupt="ignore")
