"""``python -m tests.browser [pytest's arguments]``: 3 where there is no Chromium, otherwise what pytest says.

``SCREENSHOTS=1`` keeps pictures of every step in ``docs/images``; otherwise none of them changes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.browser import chromium

REFUSED = 3


def main() -> int:
    if chromium.find() is None:
        print(f"test-browser: {chromium.ABSENT}.", file=sys.stderr)
        return REFUSED
    command = [sys.executable, "-m", "pytest", str(Path(__file__).parent), *sys.argv[1:]]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
