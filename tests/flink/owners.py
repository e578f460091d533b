"""The owner function of job p where its partitioner is custom; ``Shapes.java`` has the same rule."""

from __future__ import annotations

import numpy as np
import pyarrow as pa


def by_remainder(values: pa.StructArray, parallelism: int, max_parallelism: int) -> np.ndarray:
    return np.asarray(values.field("f0")) % parallelism
