"""``python -m cdr_core.phases NAME --recovery ID [--epoch N]``."""

import sys

from cdr_core.errors import USAGE_EXIT_CODE
from cdr_core.metadata import Phase
from cdr_core.runtime.phase_command import main

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in set(Phase):
        print(f"usage: python -m cdr_core.phases {{{','.join(Phase)}}} --recovery ID [--epoch N]", file=sys.stderr)
        sys.exit(USAGE_EXIT_CODE)
    main(sys.argv[1], sys.argv[2:])
