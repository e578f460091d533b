"""The verdict of a drill as a process: ``python -m cdr_core.drill DRILL [--failure JSON]``.

What the checks say goes to stderr; the last line of stdout is the drill with its result. The exit status is 0 whatever
the result is: this process did its work. Another one means that there is no result yet.
"""

from __future__ import annotations

import argparse
import json
import sys

from cdr_core import settings as settings_module
from cdr_core.drill.drill_view import as_json, as_text
from cdr_core.drill.finish import end
from cdr_core.drill.verdict import Failure, FailureKind
from cdr_core.errors import CdrError
from cdr_core.log import configure
from cdr_core.metadata import Repository


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cdr_core.drill")
    parser.add_argument("drill", help="id of the drill")
    parser.add_argument("--failure", default="", help="why its recovery did not end well: kind and sentence, as JSON")
    options = parser.parse_args()
    settings = settings_module.load()
    configure(settings.log_level, settings.log_format)
    try:
        with Repository.open(settings.database_url) as repository:
            drill = end(repository, settings, options.drill, _failure(options.failure))
    except CdrError as error:
        print(f"cdr: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    print(as_text(drill), file=sys.stderr, flush=True)
    print(json.dumps(as_json(drill)), flush=True)
    return 0


def _failure(text: str) -> Failure | None:
    if not text:
        return None
    value = json.loads(text)
    return Failure(FailureKind(value["kind"]), str(value["sentence"]))


if __name__ == "__main__":
    sys.exit(main())
