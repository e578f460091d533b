"""The command that gets a failed recovery further, printed so that it can be run as it stands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from cdr_core.errors import CdrError

ON_CORRUPT = "--on-corrupt"
REPLACE = "--replace"


def remedy_command(error: CdrError, arguments: Sequence[str]) -> str | None:
    """What to run instead of ``cdr ARGUMENTS``; ``None`` if no other option of a recovery helps."""
    if not error.remedy:
        return None
    match [*arguments]:
        case ["recover", *rest]:
            return _command("recover", rest, error.remedy)
        case ["resume", *rest]:
            return _command("resume", rest, (*error.remedy, REPLACE))
        case ["phase", _, recovery, *_]:
            return _command("resume", [recovery], (*error.remedy, REPLACE))
    return None


def _command(name: str, words: Sequence[str], remedy: Sequence[str]) -> str | None:
    kept = _without_corrupt(words) if ON_CORRUPT in remedy else list(words)
    added = [word for word in dict.fromkeys(remedy) if word not in kept]
    return shlex.join(["cdr", name, *kept, *added]) if added else None


def _without_corrupt(words: Sequence[str]) -> list[str]:
    """The words without ``--on-corrupt`` and its value, which the remedy gives anew."""
    kept, skip = [], False
    for word in words:
        if skip or word == ON_CORRUPT:
            skip = word == ON_CORRUPT
        elif not word.startswith(f"{ON_CORRUPT}="):
            kept.append(word)
    return kept
