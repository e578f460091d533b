"""Alerts: who gets them, and that a broken channel neither stops the others nor gives its secret away."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import BaseNotifier
from airflow.serialization.decoders import decode_deadline_alert
from airflow.serialization.encoders import encode_deadline_alert
from airflow.serialization.enums import DagAttributeTypes, Encoding

from cdr_airflow import deadline, notify

TOKEN = "T0kenOfTheWebhook"
NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)


class Receiver(BaseHTTPRequestHandler):
    """Keeps what is POSTed."""

    posted: list[tuple[str, dict[str, Any]]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.posted.append((self.path, json.loads(body)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """A test's output is its own."""


class Heard(BaseNotifier):
    """An Airflow notifier that remembers its contexts."""

    contexts: list[Any] = []  # noqa: RUF012 # one list for all, as the notifier is made anew for each alert

    def notify(self, context: Any) -> None:
        self.contexts.append(context)


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Receiver]]:
    kind = type("Kept", (Receiver,), {"posted": []})
    with HTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("CDR_NOTIFY_WEBHOOK", f"http://127.0.0.1:{server.server_port}/hooks/{TOKEN}")
        yield kind
        server.shutdown()
        thread.join()


def test_without_channels_an_alert_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assert notify.drill_ended("FAILED", "nightly", "Drill nightly FAILED: 3 records are missing.") == ("log",)
    assert "3 records are missing" in caplog.text


def test_a_webhook_gets_the_sentence_and_the_facts(webhook: type[Receiver]) -> None:
    assert notify.deadline_missed("cdr_recover", "manual__1", "2026-05-04 03:02", "running") == ("log", "webhook")
    ((path, body),) = webhook.posted
    assert path == f"/hooks/{TOKEN}"
    assert body["alert"] == "deadline_missed"
    assert "manual__1" in body["text"]
    assert body["state"] == "running"


def test_a_notifier_of_airflow_gets_it_as_its_context(monkeypatch: pytest.MonkeyPatch, webhook: type[Receiver]) -> None:
    monkeypatch.setenv("CDR_NOTIFIER", f"{Heard.__module__}.Heard")
    Heard.contexts.clear()
    assert notify.drill_ended("TIMED_OUT", "nightly", "Too slow.", rto_s=99.0) == ("log", "webhook", "notifier")
    (context,) = Heard.contexts
    assert (context["alert"], context["message"], context["facts"]["rto_s"]) == ("drill_ended", "Too slow.", 99.0)


def test_a_channel_that_fails_is_said_without_its_secret_and_the_others_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CDR_NOTIFY_WEBHOOK", f"http://127.0.0.1:1/hooks/{TOKEN}")
    monkeypatch.setenv("CDR_NOTIFIER", f"{Heard.__module__}.Heard")
    assert notify.drill_ended("FAILED", "nightly", "It failed.") == ("log", "notifier")
    assert "did not reach http://127.0.0.1:1/***" in caplog.text
    assert TOKEN not in caplog.text


def test_settings_that_do_not_load_leave_the_alert_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CDR_PAGE_SIZE", "1")
    assert notify.drill_ended("FAILED", "nightly", "It failed.") == ("log",)
    assert "It failed." in caplog.text


# --- the deadline ---------------------------------------------------------------------------------------------------


def run(**conf: Any) -> Any:
    return SimpleNamespace(run_id="manual__1", conf=conf, queued_at=NOW, run_after=NOW)


def test_a_run_is_needed_by_its_own_rto_else_by_the_setting_else_never(monkeypatch: pytest.MonkeyPatch) -> None:
    assert deadline.needed_by(run()) is None
    assert deadline.needed_by(run(rto="15m")) == NOW + timedelta(minutes=15)
    monkeypatch.setenv("CDR_RTO", "1h")
    assert deadline.needed_by(run(rto=None)) == NOW + timedelta(hours=1)
    assert deadline.needed_by(run(rto="10s")) == NOW + timedelta(seconds=10)


@pytest.mark.parametrize("rto", ["soon", "9999999d", "99999999999999d", f"{'9' * 400}d"])
def test_an_rto_that_cannot_be_read_does_not_keep_a_run_from_starting(
    caplog: pytest.LogCaptureFixture, rto: str
) -> None:
    assert deadline.needed_by(run(rto=rto)) is None
    assert "it has no deadline" in caplog.text


def test_the_deadline_survives_being_stored_because_the_plugin_lists_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow import plugins_manager

    import cdr_deadline

    listed = {
        f"{kind.__module__}.{kind.__qualname__}": kind for kind in cdr_deadline.CdrDeadlinePlugin.deadline_references
    }
    monkeypatch.setattr(plugins_manager, "get_deadline_references_plugins", lambda: listed)
    stored = {Encoding.TYPE: DagAttributeTypes.DEADLINE_ALERT, Encoding.VAR: encode_deadline_alert(deadline.alert())}
    read = decode_deadline_alert(stored)
    assert isinstance(read.reference.inner_ref, deadline.RecoveryTime)
    assert read.callback.path == "cdr_airflow.deadline.passed"


def test_what_is_called_when_it_is_missed_answers_with_text(webhook: type[Receiver]) -> None:
    # Airflow stores the answer in a text column; anything else ends the triggerer with all it watches.
    context = {
        "dag_run": {"dag_id": "cdr_recover", "dag_run_id": "manual__1", "state": "running"},
        "deadline": {"id": "1", "deadline_time": NOW},
    }
    assert asyncio.run(deadline.passed(context)) == "log, webhook"
    assert "2026-05-04 03:02:01" in webhook.posted[0][1]["text"]
