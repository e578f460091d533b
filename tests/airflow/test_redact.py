"""Secrets: what is taken for one, and that none gets into anything a task says."""

from __future__ import annotations

import json

import pytest

from cdr_airflow.redact import redactor_for

KEY = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


@pytest.mark.parametrize(
    ("variable", "value", "secret"),
    [
        ("AWS_SECRET_ACCESS_KEY", KEY, KEY),
        ("AWS_SESSION_TOKEN", "FwoGZXIvYXdzEJr", "FwoGZXIvYXdzEJr"),
        ("CDR_DATABASE_URL", "postgresql://cdr:pa%2Fss-w0rd@db/cdr", "pa%2Fss-w0rd"),
        ("CDR_DATABASE_URL", "postgresql://cdr:pa%2Fss-w0rd@db/cdr", "pa/ss-w0rd"),
        ("CDR_DATABASE_URL", "postgresql://db/cdr?user=cdr&password=geheimnis", "geheimnis"),
        (
            "CDR_NOTIFY_WEBHOOK",
            "https://hooks.example/services/T0/B0/XXtokenXXtokenXX",
            "services/T0/B0/XXtokenXXtokenXX",
        ),
        ("CDR_NOTIFY_WEBHOOK", "https://hooks.example/services/T0/B0/XXtokenXXtokenXX", "XXtokenXXtokenXX"),
        ("CDR_NOTIFY_WEBHOOK", "https://hooks.example/in?key=abcdef", "key=abcdef"),
        ("MY_DB_PASSWORD", "hunter2", "hunter2"),
        ("AIRFLOW__CORE__FERNET_KEY", "81HqDtbqAywKSOumSha3BhWNOdQ26slT6K0=", "81HqDtbqAywKSOumSha3BhWNOdQ26slT6K0="),
        ("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://airflow:of-airflow@db/airflow", "of-airflow"),
    ],
)
def test_a_secret_of_the_environment_is_hidden_wherever_it_is_said(variable: str, value: str, secret: str) -> None:
    clean = redactor_for({variable: value})
    assert clean(f"before {secret} after") == "before *** after"


def test_a_secret_in_json_is_hidden_and_the_json_stays_one() -> None:
    clean = redactor_for({"AWS_SECRET_ACCESS_KEY": 'with"quote\\'})
    said = json.loads(clean(json.dumps({"error": 'denied for with"quote\\', "kind": "StorageError"})))
    assert said == {"error": "denied for ***", "kind": "StorageError"}


def test_a_password_in_any_url_is_hidden_even_if_nobody_knew_of_it() -> None:
    assert redactor_for({})("cannot reach postgresql://u:unknown@h/d") == "cannot reach postgresql://u:***@h/d"


@pytest.mark.parametrize("variable", ["AWS_WEB_IDENTITY_TOKEN_FILE", "HOME", "CDR_HOME", "SSL_PRIVATE_KEY_PATH"])
def test_where_something_lies_is_no_secret(variable: str) -> None:
    assert redactor_for({variable: "/var/lib/things"})("see /var/lib/things") == "see /var/lib/things"


def test_what_is_too_short_to_tell_from_a_word_is_left_alone() -> None:
    assert redactor_for({"A_TOKEN": "a"})("a cat") == "a cat"


def test_settings_that_do_not_load_do_not_keep_the_rest_from_being_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    clean = redactor_for({"AWS_SECRET_ACCESS_KEY": KEY, "CDR_CONFIG": "/nowhere.toml"})
    assert clean(KEY) == "***"
