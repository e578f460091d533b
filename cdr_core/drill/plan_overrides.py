"""One-off overrides of a drill plan, from the shell's options or the form."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cdr_core.drill.plan import DrillPlan, parse_plan
from cdr_core.errors import DrillPlanRefused

WISHES = ("checkpoints", "spec", "parallelism", "choose", "rto", "max_age")


BY_HAND = "by-hand"
"""How a refusal names a drill that has no plan."""


def with_wishes(base: DrillPlan | None, given: Mapping[str, str]) -> DrillPlan:
    """Return ``base`` with what was given and is not empty; without a base, a drill by hand, whose name is empty.

    Raise ``DrillPlanRefused`` where that does not describe a drill.
    """
    wishes = {field: value for field, value in given.items() if value}
    if base is None and not ("checkpoints" in wishes and "spec" in wishes):
        raise DrillPlanRefused(
            "a drill needs a plan, or checkpoints and a job spec",
            hint="name a plan that cdr drill plans lists, or give both",
        )
    if "checkpoints" in wishes:
        wishes["checkpoints"] = _absolute(wishes["checkpoints"])
    if base is None:
        return replace(parse_plan(BY_HAND, wishes), name="")
    # Read as a plan of its own, so that a wish is refused for the same reasons and in the same words.
    wished = parse_plan(base.name, {"spec": base.spec, "checkpoints": base.checkpoints, **wishes})
    return replace(
        base,
        checkpoints=wished.checkpoints,
        spec=wished.spec,
        parallelism=wished.parallelism if "parallelism" in wishes else base.parallelism,
        choice=wished.choice if "choose" in wishes else base.choice,
        rto_s=wished.rto_s if "rto" in wishes else base.rto_s,
        give_up_s=wished.give_up_s if "rto" in wishes else base.give_up_s,
        max_age_s=wished.max_age_s if "max_age" in wishes else base.max_age_s,
    )


def _absolute(place: str) -> str:
    return place if "://" in place else os.path.realpath(Path(place).expanduser())
