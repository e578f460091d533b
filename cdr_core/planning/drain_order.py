"""The order in which exchanges are drained: those that a user names, one after another, then all others together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cdr_core.errors import Refused
from cdr_core.planning.plan import Plan


def parse_order(text: str) -> tuple[str, ...]:
    """Return the exchanges of ``a,b``."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def check_order(plan: Plan, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names. Raise for one that is no exchange, and for one that comes twice."""
    known = [exchange.name for exchange in plan.exchanges]
    for number, name in enumerate(names):
        if name not in known:
            raise Refused(f"the drain order names {name!r}, which is no exchange", hint=f"use {', '.join(known)}")
        if name in names[:number]:
            raise Refused(f"the drain order names {name!r} twice", hint="name each exchange once")
    return tuple(names)


def stages(plan: Plan, names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the stage of each exchange, from 0; all that are not named are in the last."""
    places = {name: place for place, name in enumerate(names)}
    return np.array([places.get(exchange.name, len(names)) for exchange in plan.exchanges], np.int64)
