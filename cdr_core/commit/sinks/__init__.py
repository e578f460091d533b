"""Where a recovery's output goes, behind one small interface."""

from cdr_core.commit.sinks.base import LookUp, Publication, Published, Sink, lake_for, sink_for

__all__ = ["LookUp", "Publication", "Published", "Sink", "lake_for", "sink_for"]
