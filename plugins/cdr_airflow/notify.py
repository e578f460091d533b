"""Alerts: events that a user must know now, written to the log and sent to the channels of the settings.

Each alert is one sentence and a few facts. ``CDR_NOTIFY_WEBHOOK`` gets it as JSON, ``CDR_NOTIFIER`` names an Airflow
notifier (Slack, mail, PagerDuty, …) that gets it as its context: ``alert``, ``message`` and ``facts``. A failing
channel is logged and does not keep the others from being tried.
"""

from __future__ import annotations

import importlib
import json
import logging
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cdr_airflow import metrics
from cdr_core import settings
from cdr_core.settings import mask_path

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
DEADLINE_MISSED = "deadline_missed"
DRILL_ENDED = "drill_ended"


@dataclass(frozen=True, slots=True)
class Alert:
    """``kind`` for programs, ``message`` for people, ``facts`` for both: values that JSON can hold, no secret."""

    kind: str
    message: str
    facts: Mapping[str, Any] = field(default_factory=dict)


def deadline_missed(dag: str, run: str, deadline: str, state: str, *, recovery: str = "") -> tuple[str, ...]:
    """Send the alert of a run that has not succeeded in time; return the channels that accepted it."""
    metrics.deadline_missed(dag)
    message = f"Run {run} of {dag} has not succeeded by its deadline {deadline}; it is {state or 'not running'}."
    facts = {"dag": dag, "run": run, "deadline": deadline, "state": state, "recovery": recovery}
    return send(Alert(DEADLINE_MISSED, message, facts))


def drill_ended(
    result: str, plan: str, message: str, *, drill: str = "", rto_s: float | None = None, rpo_s: float | None = None
) -> tuple[str, ...]:
    """Send the alert of a drill's verdict; return the channels that accepted it."""
    facts = {"result": result, "plan": plan, "drill": drill, "rto_s": rto_s, "rpo_s": rpo_s}
    return send(Alert(DRILL_ENDED, message, facts))


def send(alert: Alert) -> tuple[str, ...]:
    """Send an alert to all channels; return the names of those that accepted it, the log first. Never raises."""
    log.warning("%s", alert.message, extra={"alert": alert.kind})
    accepted = ["log"]
    try:
        current = settings.load()
    except Exception:
        log.exception("The settings do not load, so the alert %s stays in this log.", alert.kind)
        return tuple(accepted)
    channels = (("webhook", current.notify_webhook, _post), ("notifier", current.notifier, _hand_over))
    for name, address, tell in channels:
        if address:
            try:
                tell(address, alert)
                accepted.append(name)
            except Exception as error:
                # The reason's text may quote the address, whose path is a secret.
                shown = mask_path(address) if name == "webhook" else address
                log.error("The alert %s did not reach %s: %s.", alert.kind, shown, type(error).__name__)
    return tuple(accepted)


def _post(address: str, alert: Alert) -> None:
    body = {"alert": alert.kind, "text": alert.message, **alert.facts}
    request = urllib.request.Request(
        address, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS):
        return


def _hand_over(path: str, alert: Alert) -> None:
    module, _, name = path.rpartition(".")
    notifier = getattr(importlib.import_module(module), name)()
    # Call ``notify`` itself: calling the notifier hides errors.
    notifier.notify({"alert": alert.kind, "message": alert.message, "facts": dict(alert.facts)})
