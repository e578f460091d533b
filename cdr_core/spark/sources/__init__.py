"""Spark data sources: the in-flight data of a checkpoint as DataFrames.

``register(spark)`` registers both formats with a session, classic or Connect; the executors need cdr on their path.
"""

from __future__ import annotations

from typing import Any

from cdr_core.spark.sources.channel_state import ChannelStateSource
from cdr_core.spark.sources.checkpoint import CheckpointSource

__all__ = ["ChannelStateSource", "CheckpointSource", "register"]


def register(spark: Any) -> None:
    """Make ``flink_channel_state`` and ``flink_checkpoint`` readable in this session, filters pushed down."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(ChannelStateSource)
    spark.dataSource.register(CheckpointSource)
