"""The error tree keeps what the shell and Airflow read from it: exit status, whether to retry, place and advice."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator

import pytest

from cdr_core import errors, extras
from cdr_core.errors import CdrError, Where, from_exit_code


def _all_kinds(kind: type[CdrError] = CdrError) -> Iterator[type[CdrError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _all_kinds(below)


KINDS = sorted(_all_kinds(), key=lambda kind: kind.__name__)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("CdrError", 1),
        ("StorageError", 1),
        ("DiskFull", 1),
        ("SpillLost", 1),
        ("DatabaseUnavailable", 1),
        ("JobFailed", 1),
        ("NotReady", 1),
        ("CommitConflict", 1),
        ("CommitUnknown", 1),
        ("Unbalanced", 2),
        ("Refused", 3),
        ("NotFound", 3),
        ("SettingsRefused", 3),
        ("SpecRefused", 3),
        ("PlanRefused", 3),
        ("DrillPlanRefused", 3),
        ("PhaseRefused", 3),
        ("InDoubt", 3),
        ("Cancelled", 3),
        ("GivenUp", 3),
        ("Fenced", 4),
        ("Corrupt", 5),
        ("Unreadable", 5),
        ("CorruptMetadata", 5),
        ("CorruptChannelState", 5),
        ("Partial", 6),
    ],
)
def test_a_situation_keeps_its_documented_exit_status(name: str, status: int) -> None:
    assert getattr(errors, name).exit_code == status


def test_a_command_line_that_cannot_be_understood_has_a_status_no_error_uses() -> None:
    assert errors.USAGE_EXIT_CODE == 64
    assert 64 not in {kind.exit_code for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_every_exit_status_is_documented_and_only_a_plain_failure_is_worth_a_retry(kind: type[CdrError]) -> None:
    assert kind.exit_code in {1, 2, 3, 4, 5, 6}
    assert kind.retry_helps == (kind.exit_code == 1)


@pytest.mark.parametrize("kind", KINDS)
def test_pickling_keeps_kind_words_place_and_hint(kind: type[CdrError]) -> None:
    error = kind("no room", where=Where(checkpoint="chk-2", gate=0, offset=17), hint="free some")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert (back.what, back.where, back.hint, str(back)) == (error.what, error.where, error.hint, str(error))


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (CdrError("no room"), "no room."),
        (CdrError("no room."), "no room."),
        (CdrError("no room", hint="free some"), "no room; free some."),
        (CdrError("no room.", hint="free some."), "no room; free some."),
        (CdrError("no room", where=Where(operator="slow", subtask=0)), "no room (operator slow, subtask 0)."),
        (CdrError("no room", where=Where(offset=0), hint="free some"), "no room (offset 0); free some."),
    ],
)
def test_a_message_is_one_sentence(error: CdrError, sentence: str) -> None:
    assert str(error) == sentence


def test_a_place_is_named_from_coarse_to_fine() -> None:
    where = Where(checkpoint="c", exchange="e", operator="o", subtask=1, gate=2, channel=3, offset=4)
    assert str(where) == "checkpoint c, exchange e, operator o, subtask 1, gate 2, channel 3, offset 4 of the channel"


def test_an_offset_is_one_of_the_channel_only_where_a_virtual_channel_is_named() -> None:
    assert str(Where(operator="o", subtask=1, gate=2, channel=3, offset=4)).endswith("channel 3, offset 4")
    assert str(Where(checkpoint="c", offset=4)) == "checkpoint c, offset 4"


@pytest.mark.parametrize("status", [1, 2, 3, 4, 5, 6])
def test_the_exit_status_of_a_child_becomes_an_error_of_the_same_status(status: int) -> None:
    assert from_exit_code(status, "the driver failed").exit_code == status


@pytest.mark.parametrize("status", [-9, 137, 64, 99])
def test_a_child_that_was_killed_may_be_retried(status: int) -> None:
    assert from_exit_code(status, "the driver died").retry_helps


@pytest.mark.parametrize("extra", sorted(extras.EXTRAS))
def test_an_absent_library_names_its_extra(monkeypatch: pytest.MonkeyPatch, extra: str) -> None:
    extras.require_extra(extra, "this")
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    with pytest.raises(errors.Refused, match=re.escape(f'pip install "cdr[{extra}]"')):
        extras.require_extra(extra, "this")


def test_a_command_at_the_end_has_no_full_stop_behind_it() -> None:
    assert str(errors.Refused("x", hint="run: cdr resume r-1")) == "x; run: cdr resume r-1"
    assert str(errors.Refused("x", hint="run: cdr resume r-1, or choose another target")).endswith("target.")
    assert str(errors.Refused("x", hint="correct it")) == "x; correct it."
