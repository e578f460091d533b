"""Which errors are retried: every class, as the operator treats it and as the documentation says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from cdr_airflow.operator import _give_up
from cdr_airflow.redact import Redactor
from cdr_core import errors
from cdr_core.errors import CdrError

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "airflow.md"
CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, CdrError)]
NEVER = {"Fenced", "Corrupt", "Refused", "Unbalanced", "Partial"}
ALWAYS = {"StorageError", "JobFailed", "DatabaseUnavailable", "CommitUnknown"}


def documented() -> dict[str, bool]:
    rows = re.findall(r"^\| (`.+?) \| (yes|no) \|", DOCUMENT.read_text(), re.MULTILINE)
    return {name: retried == "yes" for names, retried in rows for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_each_class_is_retried_or_not_as_documented(kind: type[CdrError]) -> None:
    with pytest.raises(AirflowException) as raised:
        _give_up(kind("it is so"), Redactor())
    assert isinstance(raised.value, AirflowFailException) != documented()[kind.__name__]


def test_nothing_else_is_documented() -> None:
    assert documented().keys() == {kind.__name__ for kind in CLASSES}


def test_what_the_promises_name_is_on_the_right_side() -> None:
    assert not any(documented()[name] for name in NEVER)
    assert all(documented()[name] for name in ALWAYS)


def test_a_sentence_is_cleaned_and_what_it_came_from_is_not_shown() -> None:
    with pytest.raises(AirflowException) as raised:
        _give_up(errors.StorageError("denied for s3cret"), Redactor(("s3cret",)))
    assert str(raised.value) == "denied for ***."
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__
