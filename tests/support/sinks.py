"""Sinks by the text of their target."""

from __future__ import annotations

from cdr_core.commit.sinks import Sink, sink_for
from cdr_core.targets import Target


def sink_of(target: str) -> Sink:
    return sink_for(Target.parse(target))
