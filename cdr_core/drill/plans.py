"""The file of drill plans: what of it can be used, and what is wrong with the rest.

A plan that is wrong does not stop other drills: the sound ones are returned beside the refusals.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cdr_core.drill.plan import DrillPlan, parse_plan
from cdr_core.errors import DrillPlanRefused, Refused

VERSION = 1
LARGEST_FILE = 1024 * 1024
MOST_PLANS = 1000


@dataclass(frozen=True, slots=True)
class Plans:
    """``refusals``: a sentence per plan that cannot be used, by its name; the file as a whole goes by ``""``."""

    plans: tuple[DrillPlan, ...] = ()
    refusals: tuple[tuple[str, str], ...] = ()

    def get(self, name: str) -> DrillPlan:
        """The plan of this name, or a refusal that says why there is none."""
        for plan in self.plans:
            if plan.name == name:
                return plan
        for refused, sentence in self.refusals:
            if refused in (name, ""):
                raise DrillPlanRefused(sentence)
        known = ", ".join(plan.name for plan in self.plans) or "none"
        raise Refused(f"there is no drill plan {name!r}, only {known}", hint="run: cdr drill plans")


def load_plans(file: Path) -> Plans:
    """The plans in the file. A file that is not there holds none; one that cannot be read is a refusal, not none."""
    try:
        if not file.exists():
            return Plans()
        if file.stat().st_size > LARGEST_FILE:
            return _unusable(file, "is larger than 1 MiB")
        text = file.read_text()
    except UnicodeDecodeError:
        return _unusable(file, "is not text")
    except OSError as error:
        return _unusable(file, f"cannot be read: {error.strerror}")
    return parse_plans(text, file)


def parse_plans(text: str, file: Path) -> Plans:
    """The plans of a file's text; a spec that is given by a relative path lies beside the file."""
    import yaml

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        return _unusable(file, f"is not YAML: {' '.join(str(error).split())}")
    if document is None:
        return Plans()
    problem = _problem(document)
    if problem:
        return _unusable(file, problem)
    plans: list[DrillPlan] = []
    refusals: list[tuple[str, str]] = []
    twice = _named_twice(text)
    for name, section in (document.get("drills") or {}).items():
        try:
            if str(name) in twice:
                raise DrillPlanRefused(f"drill plan {name} stands there twice", hint="give each a name of its own")
            plans.append(_beside(parse_plan(str(name), section), file))
        except DrillPlanRefused as error:
            refusals.append((str(name), f"{file}: {error}"))
    return Plans(tuple(plans), tuple(refusals))


def _problem(document: Any) -> str | None:
    if not isinstance(document, dict) or not set(document) <= {"version", "drills"}:
        return "holds something else than version and drills"
    if document.get("version", VERSION) != VERSION:
        return f"has version {document.get('version')!r}, this cdr reads {VERSION}"
    drills = document.get("drills") or {}
    if not isinstance(drills, dict):
        return "has drills that are no mapping from a name to a plan"
    return f"has more than {MOST_PLANS:,} plans" if len(drills) > MOST_PLANS else None


def _named_twice(text: str) -> set[str]:
    """Names that more than one plan has: YAML would keep the last one, and the drills of the other would be missing
    unnoticed.
    """
    import yaml

    root = yaml.compose(text, yaml.SafeLoader)
    drills = {key.value: section for key, section in root.value}.get("drills")
    names = [str(key.value) for key, _ in drills.value] if isinstance(drills, yaml.MappingNode) else []
    return {name for name in names if names.count(name) > 1}


def _beside(plan: DrillPlan, file: Path) -> DrillPlan:
    is_text = "\n" in plan.spec or "exchanges:" in plan.spec
    if is_text or plan.spec.startswith(("/", "~", "file://")):
        return plan
    return replace(plan, spec=str(file.parent / plan.spec))


def _unusable(file: Path, what: str) -> Plans:
    return Plans(refusals=(("", str(DrillPlanRefused(f"the drill plans {file}: it {what}", hint="correct the file"))),))
