"""Which versions of cdr created recoveries that a phase of this version can continue."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from cdr_core import __version__
from cdr_core.errors import StartOver
from cdr_core.metadata import Phase, Recovery

CONTINUED: Final[Mapping[Phase, frozenset[str]]] = MappingProxyType(
    dict.fromkeys(Phase, frozenset({"0.1.0", "0.2.0"})),
)
"""What a recovery has stored so far must be readable: a version whose formats a phase cannot read is not listed."""


def refuse_other_version(recovery: Recovery, phase: Phase) -> None:
    """Raise for a recovery that was created by a version whose work this phase cannot continue."""
    if recovery.cdr_version not in CONTINUED[phase]:
        known = ", ".join(sorted(CONTINUED[phase]))
        raise StartOver(
            f"recovery {recovery.id} was created by cdr {recovery.cdr_version}, and {phase} of cdr {__version__} "
            f"continues those of {known}",
            hint=f"finish it with cdr {recovery.cdr_version}, or start over with --replace",
        )
