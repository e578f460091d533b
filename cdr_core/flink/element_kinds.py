"""Kinds of stream elements, by the names users see."""

from __future__ import annotations

from cdr_core.kernels import frames

KINDS = {
    frames.TAG_RECORD_WITH_TIMESTAMP: "record",
    frames.TAG_RECORD: "record",
    frames.TAG_WATERMARK: "watermark",
    frames.TAG_LATENCY_MARKER: "latency_marker",
    frames.TAG_WATERMARK_STATUS: "watermark_status",
    frames.TAG_RECORD_ATTRIBUTES: "record_attributes",
    frames.TAG_INTERNAL_WATERMARK: "internal_watermark",
}
"""Every kind by its tag."""

OTHER_KINDS = {tag: name for tag, name in KINDS.items() if name != "record"}
"""Kinds that are not records."""
