"""The share of this host that a drill may take: it must not slow down what it rehearses for."""

from __future__ import annotations

import os
from dataclasses import replace

from cdr_core.settings import Settings


def cores(settings: Settings, host_cores: int | None = None) -> int:
    """How many cores a drill's Spark may use: what is set, else half of the host; never more than a recovery may."""
    host = host_cores or os.cpu_count() or 1
    share = settings.drill_cores or max(host // 2, 1)
    return min(share, settings.spark_cores) if settings.spark_cores else share


def bounded(settings: Settings) -> Settings:
    """The settings with which a drill's phases run."""
    share = cores(settings)
    local = settings.spark.startswith("local")
    return replace(settings, spark_cores=share, spark=f"local[{share},4]" if local else settings.spark)


def environment(settings: Settings) -> dict[str, str]:
    """The same for a driver process, which reads its settings itself."""
    mine = bounded(settings)
    return {"CDR_SPARK_CORES": str(mine.spark_cores), "CDR_SPARK": mine.spark}
