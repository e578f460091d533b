"""The command that continues a failed recovery, printed so that it can be copied."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from cdr_core.errors import CdrError

ON_CORRUPT = "--on-corrupt"
REPLACE = "--replace"


def remedy_command(error: CdrError, arguments: Sequence[str]) -> str | None:
    """Return the command to run instead of ``cdr ARGUMENTS``; ``None`` if no other option of a recovery helps."""
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


def _command(name: str, words: Sequence[str], options: Sequence[str]) -> str | None:
    """Return the words with the missing options added; a value of ``--on-corrupt`` is replaced by the remedy's."""
    kept = [*words]
    if any(option.startswith(ON_CORRUPT) for option in options):
        kept = [word for word in kept if not word.startswith(f"{ON_CORRUPT}=")]
        if ON_CORRUPT in kept:
            del kept[kept.index(ON_CORRUPT) : kept.index(ON_CORRUPT) + 2]
    added = [option for option in dict.fromkeys(options) if option not in kept]
    return shlex.join(["cdr", name, *kept, *added]) if added else None
