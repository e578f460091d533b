"""``cdr elements`` on channels that are damaged, or hold what cannot be shown: what is still printed, what is said."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from cdr_core.channels.element_reader import OWNER, element_batches, element_schema
from cdr_core.cli import elements as elements_command
from cdr_core.verify.framing import find_frames
from cdr_core.verify.keys import murmur, owner
from tests.support.shell import Shell
from tests.support.written import (
    SPEC,
    frame,
    internal_watermark,
    record,
    status,
    watermark,
    write_checkpoint,
)

REBALANCE = SPEC.format(partitioner="rebalance")
GOOD = b"".join(record(key, "abc") for key in range(6))
PLACE = "exchange main, operator slow, subtask 0, gate 0, channel 0, offset {} of the channel"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (record(9, "cut")[:-1], "the channel ends inside a record, 13 bytes are announced and 12 are there"),
        (b"\0\0", "the channel ends inside a record, 2 of the 4 bytes of its length are left over"),
        (struct.pack(">i", -5) + b"abc", "an impossible record length of -5"),
        (struct.pack(">i", 0) + GOOD, "an impossible record length of 0"),
        (frame(b"\x04" + struct.pack(">i", 7)), "a watermark status that is neither active (0) nor idle (-1)"),
        (frame(b"\x05\x02"), "record attributes whose flag is neither 0 nor 1"),
    ],
)
def test_a_frame_error_says_what_is_wrong_and_names_operator_and_offset_behind_the_good_records(
    shell: Shell, tmp_path: Path, bad: bytes, said: str
) -> None:
    path = write_checkpoint(tmp_path / "chk-1", 1, 1, {(0, 0): GOOD + bad})
    code, out, err = shell("elements", path, "--spec", REBALANCE, "--json")
    assert code == 5
    assert [json.loads(line)["fields"]["f0"] for line in out.splitlines()] == list(range(6))
    assert said in err
    assert PLACE.format(len(GOOD)) in err
    second = find_frames(GOOD + bad, np.array([0, len(GOOD + bad)]))
    assert second.wrong[0], "the second reader sees the same damage at the same place"
    assert (int(second.ends[-1]), second.first.tolist()) == (len(GOOD), [0, 6])


def flink_string(units: list[int]) -> bytes:
    """A string as Flink writes it: the number of characters and one, then each in groups of seven bits."""

    def grouped(number: int) -> bytes:
        groups = bytearray()
        while number >= 0x80:
            groups.append(number & 0x7F | 0x80)
            number >>= 7
        return bytes([*groups, number])

    return grouped(len(units) + 1) + b"".join(grouped(unit) for unit in units)


def sql_row(text: bytes) -> bytes:
    """A binary row of one short string, as Flink SQL writes it: length, kind and null bits, the text and its length."""
    assert len(text) < 8
    return struct.pack(">i", 16) + bytes(8) + text.ljust(7, b"\0") + bytes([0x80 | len(text)])


LONG_2 = struct.pack(">q", 2)
NO_TEXT = {
    "STRING": ("TUPLE<LONG, STRING>", LONG_2 + b"\2x", LONG_2 + flink_string([0x41, 0xD800]), "A\ufffd"),
    "CHAR": ("TUPLE<LONG, CHAR>", LONG_2 + b"\0x", LONG_2 + b"\xd8\x00", "\ufffd"),
    "SQL STRING": ("ROWDATA<f1 STRING>", sql_row(b"x"), sql_row(b"A\xff"), "A\ufffd"),
}
"""By kind: the record type, a value that is text, one that is not, and what replaces it."""

KEPT_AS = {"STRING": "OPAQUE", "CHAR": "OPAQUE", "SQL STRING": "BYTES"}


def _with_record_type(text: str) -> str:
    return REBALANCE.replace("TUPLE<LONG, STRING>", text).replace("    key: [f0]\n", "")


@pytest.mark.parametrize("kind", NO_TEXT)
def test_a_string_that_is_no_text_stops_behind_the_good_records_and_its_hint_can_be_followed(
    shell: Shell, tmp_path: Path, kind: str
) -> None:
    described, good, bad, shown = NO_TEXT[kind]
    data = b"".join(frame(b"\x01" + value) for value in (good, good, bad, bad))
    path = write_checkpoint(tmp_path / "chk-1", 1, 1, {(0, 0): data})
    arguments = ("elements", path, "--json", "--spec")

    code, out, err = shell(*arguments, _with_record_type(described))
    assert (code, len(out.splitlines())) == (5, 2)
    assert "--replace-text" in err
    assert f"as {KEPT_AS[kind]}" in err

    code, out, _ = shell(*arguments, _with_record_type(described), "--replace-text")
    assert code == 0
    assert [json.loads(line)["fields"]["f1"] for line in out.splitlines()] == ["x", "x", shown, shown]

    code, out, _ = shell(*arguments, _with_record_type(described.replace(kind.split()[-1], KEPT_AS[kind])))
    assert (code, len(out.splitlines())) == (0, 4)


def test_an_owner_function_is_not_asked_about_text_that_was_replaced(shell: Shell, tmp_path: Path) -> None:
    """It might name another owner than the job would have."""
    odd = frame(b"\x01" + LONG_2 + flink_string([0xD800]))
    path = write_checkpoint(tmp_path / "chk-1", 1, 2, {(0, 0): record(0), (0, 1): record(1) + odd})
    spec = SPEC.format(partitioner="custom").replace("    key: [f0]", "    owner: tests.rescale.routing:by_key")
    code, out, _ = shell("elements", path, "--spec", spec, "--parallelism", "gen=1,slow=3", "--replace-text", "--json")
    assert code == 0
    assert [json.loads(line)["owner"] for line in out.splitlines()] == [0, None, None]


def test_a_key_that_belongs_elsewhere_is_named_behind_the_good_records_and_may_be_damage(
    shell: Shell, tmp_path: Path
) -> None:
    owners = [owner(murmur(key) % 128, 2, 128) for key in range(40)]
    good, bad = [key for key in range(40) if owners[key] == 1], owners.index(0)
    before = b"".join(map(record, good[:3])) + watermark(5)
    path = write_checkpoint(tmp_path / "chk-1", 1, 2, {(0, 1): before + record(bad) + record(good[4])})
    code, out, err = shell("elements", path, "--spec", SPEC.format(partitioner="hash"), "--json")
    assert code == 3
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["fields"]["f0"] for line in lines[:3]] == good[:3]
    assert [line["kind"] for line in lines[3:]] == ["watermark"]
    assert "at position 4 a record's key belongs to old subtask 0" in err
    assert f"channel 0, offset {len(before)} of the channel" in err
    assert "if they are right, the bytes are damaged" in err


def test_watermarks_of_both_kinds_show_their_time(shell: Shell, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "chk-1", 1, 1, {(0, 0): watermark(7) + internal_watermark(-8) + status(True)})
    code, out, _ = shell("elements", path, "--spec", REBALANCE, "--json")
    assert code == 0
    shown = [(line["kind"], line["ts"]) for line in map(json.loads, out.splitlines())]
    assert shown == [("watermark", 7), ("internal_watermark", -8), ("watermark_status", None)]


def test_lines_are_made_one_after_another(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "chk-1", 1, 1, {(0, 0): GOOD})
    plan = elements_command._plan(path, REBALANCE, "same")
    (batch,) = element_batches(plan, 0, frozenset(element_schema(plan).names) | {OWNER.name})
    lines = elements_command._lines(plan, 0, batch)
    assert not isinstance(lines, list)
    assert next(lines)["pos"] == 0
