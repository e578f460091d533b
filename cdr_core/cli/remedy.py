"""The command that gets a failed recovery further, printed so that it can be run as it stands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from cdr_core.errors import CdrError

_VALUED = frozenset({"--on-corrupt"})
"""Options of a remedy that have a value, which takes the place of the one that was given."""


def remedy_command(error: CdrError, arguments: Sequence[str]) -> str | None:
    """What to run instead of ``cdr ARGUMENTS``; ``None`` if no option of ``cdr recover`` helps, or all were given."""
    if not error.remedy or not arguments or arguments[0] != "recover":
        return None
    wanted = list(error.remedy)
    kept = _without([name for name in wanted if name in _VALUED], arguments)
    kept += [word for word in wanted if word.startswith("--") and word not in _VALUED and word not in arguments]
    for name in wanted:
        if name in _VALUED:
            kept += [name, wanted[wanted.index(name) + 1]]
    return None if sorted(kept) == sorted(arguments) else shlex.join(["cdr", *kept])


def _without(names: Sequence[str], arguments: Sequence[str]) -> list[str]:
    kept, skip = [], False
    for word in arguments:
        if skip:
            skip = False
        elif word in names:
            skip = True
        elif not any(word.startswith(f"{name}=") for name in names):
            kept.append(word)
    return kept
